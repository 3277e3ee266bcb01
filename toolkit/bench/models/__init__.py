"""`toolkit bench models`: the families of keras.applications, exported and compared."""

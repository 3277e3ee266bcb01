"""What becomes of a trained device: an inference model of it, a picture of how it plays."""

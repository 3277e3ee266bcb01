"""Supervised tasks: labelled examples, from the package, from files, or CIFAR-10."""

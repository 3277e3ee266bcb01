"""Training above a frozen backbone, beside plain inference of the same backbone."""

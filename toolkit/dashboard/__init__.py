"""The dashboard: a page in the browser that shows a fleet."""

"""The aggregator's state folder: what it keeps, how it is checked, and how it is salvaged."""

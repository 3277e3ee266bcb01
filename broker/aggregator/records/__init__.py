"""What an aggregator keeps record of: its counters, its log, and a report for observers."""

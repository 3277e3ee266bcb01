"""`toolkit bench update`: update plans beside a full update, in memory, time and accuracy."""

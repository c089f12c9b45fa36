"""What a measurement leaves behind: runs, statistics, the store. torch is never imported."""

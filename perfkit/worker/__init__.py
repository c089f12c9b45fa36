"""Everything that runs inside the measured process."""

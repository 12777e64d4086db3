"""What this machine is and has. Imports nothing here: the child that asks NVML goes through this package."""

"""HTTP and websockets around the plane."""

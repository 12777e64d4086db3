"""What travels between the parts: typed messages, states, records. Imports nothing else of ours."""

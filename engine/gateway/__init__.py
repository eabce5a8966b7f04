"""The gateway: validates requests, chooses a replica, streams answers back, and owns the state of each request."""

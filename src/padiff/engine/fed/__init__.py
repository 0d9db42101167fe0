"""The second look: raw run again with every call fed what base's was fed, and who is to blame for what differs then."""

"""The facts of a request, read from its bytes before anything is sent."""

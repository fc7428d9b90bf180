"""What a request asks for, read from its bytes before anything is sent."""

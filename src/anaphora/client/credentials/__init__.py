"""Credentials of the clouds: what a request needs besides a fixed key, such as a signature over it
or a token that expires.

    headers = await credentials.headers("POST", url, request_headers, body)

A provider whose key is a fixed header has none of these (`ResolvedProvider.headers`).
"""

schema_version = 1
public_key = "ed25519:9OV2Cc4YAEtzKml1DhgsAjM7AcQ8xoKTIeodUjphi24="
ed25519 = "cEE+17xZiX4IlFew9/yEZSI+rFhUm/+TKsKYMroBxIadsSzdpxuvTZKSYcjtVOCL6LZS8Za1Mnz56/CDjCqFBw=="

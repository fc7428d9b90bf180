schema_version = 1
public_key = "ed25519:r6Lzgex354lTVJCStpSARiFyAnEiKswaJbfWEmXzNEc="

[[signature]]
length = 909
ed25519 = "0xFO1+1axTK/iUwUiQ9GOUVLPETFbySWrhLQaA47ZJCjEsMFcEkbtEI6yL4WNKIwoy8F5Y/ySBK3eK5I+YLLDA=="

"""A compact Ling-3.0 (BailingMoeV3) engine for one request on one GPU; its model files know no optimization."""

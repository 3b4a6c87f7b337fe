"""The models that the rig serves, for SGLANG_EXTERNAL_MODEL_PACKAGE: SGLang then doesn't import all its others (4 s)."""

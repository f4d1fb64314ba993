"""Qwen3 controllers that repair bytecode programs, and how they learn."""

"""Plugins that add what vLLM lacks on a CPU; vLLM runs them in each of its processes. Changes nothing on a
GPU.
"""

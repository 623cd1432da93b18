"""What vLLM lacks on a CPU; vLLM runs it in each of its processes, as plugins. Changes nothing on a GPU."""

"""GPUs of this machine: found by NVML and sysfs, given to containers by CDI, to virtual machines by VFIO."""

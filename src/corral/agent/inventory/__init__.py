"""What a machine is: one probe a file (spec 40, "Reporting" and "GPUs and their health").

`collect.collect` puts them together, `digest.digest` names the result, `gpus.GpuProbe` asks the
GPUs, `busy.Holds` says which of them are Corral's, `pressure` judges disk and memory.

Nothing is imported here: the probe process loads this package too and stays small.
"""

# pyright: strict

"""A thin client on the contract: any method by its path, tokens, operations, errors.

    client = connect(read_profiles(config_file()).get())
    operation = client.call("neocloud.slurm.v1.ClusterService/Create", {"metadata": {...}, "spec": {...}})
    client.wait(operation)

It is synchronous because its users (the command line, scripts) are. It knows the contract and nothing of the
server's insides; the official `nebius` SDK can do all of this too and is what the tests hold the server to.
Import from the modules (`neocloud.client.connection`): this package imports nothing, so that its error type
costs nothing to know.
"""

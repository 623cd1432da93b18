"""A thin client on the contract: any method by its path, tokens, operations, errors.

    client = connect(read_profiles(config_file()).get())
    operation = client.call("neocloud.slurm.v1.ClusterService/Create", {"metadata": {...}, "spec": {...}})
    client.wait(operation)

It is synchronous because its users (the command line, scripts) are. It depends on the contract alone, not on
the server. The official `nebius` SDK offers all of this too; the tests check the server with it. Import from
the modules (`neocloud.client.connection`): this package imports nothing, so that importing its error type is
cheap.
"""

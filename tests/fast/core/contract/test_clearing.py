from neocloud.core import contract

Exchange = contract.message("nebius.iam.v1.ExchangeTokenRequest")
Cluster = contract.message("neocloud.slurm.v1.Cluster")


def secret_field() -> str:
    fields = contract.message_annotations(Exchange.DESCRIPTOR)
    return next(name for name, found in fields.items() if found.is_secret)


def test_annotations_of_a_field_are_found() -> None:
    spec = contract.message("nebius.compute.v1.FilesystemSpec").DESCRIPTOR
    assert contract.annotations(spec.fields_by_name["type"]).behaviors == {"IMMUTABLE"}
    metadata = contract.message("nebius.common.v1.ResourceMetadata").DESCRIPTOR
    assert contract.annotations(metadata.fields_by_name["created_at"]).is_output_only
    assert contract.annotations(Cluster.DESCRIPTOR.fields_by_name["status"]).is_output_only


def test_behaviours_of_a_oneof_are_those_of_its_members() -> None:
    behaving = [
        field
        for rpc in contract.methods().values()
        for field in rpc.input.DESCRIPTOR.fields
        if field.name == "spec" and field.message_type is not None
        for field in field.message_type.fields
        if field.containing_oneof is not None and "IMMUTABLE" in contract.annotations(field).behaviors
    ]
    assert behaving


def test_resource_behaviours_are_found() -> None:
    membership = contract.message("nebius.iam.v1.GroupMembership").DESCRIPTOR
    assert contract.resource_behaviors(membership) == {"UNNAMED"}


def test_allowed_ids_are_found() -> None:
    request = contract.message("nebius.compute.v1.GetFilesystemRequest").DESCRIPTOR
    nid = contract.annotations(request.fields_by_name["id"]).nid
    assert nid is not None and nid.resources == ("computefilesystem",)


def test_redaction_removes_secrets_and_leaves_the_original() -> None:
    name = secret_field()
    request = Exchange(**{name: "hush"}, audience="cloud")
    redacted = contract.redact(request)
    assert getattr(request, name) == "hush"
    assert getattr(redacted, name) == ""
    assert redacted.audience == "cloud"


def test_redaction_reaches_into_any() -> None:
    operation = contract.message("nebius.common.v1.Operation")(
        request=contract.pack(Exchange(**{secret_field(): "hush"}))
    )
    assert b"hush" in operation.SerializeToString()
    assert b"hush" not in contract.redact(operation).SerializeToString()


def test_redaction_drops_what_it_cannot_read() -> None:
    operation = contract.message("nebius.common.v1.Operation")()
    operation.request.type_url = "type.googleapis.com/unknown.Type"
    operation.request.value = b"hush"
    assert b"hush" not in contract.redact(operation).SerializeToString()


def test_redaction_reaches_into_maps_and_lists() -> None:
    secret = contract.message("nebius.mysterybox.v1.CreateSecretRequest")(
        spec={"secret_version": {"payload": [{"key": "k", "string_value": "hush"}]}}
    )
    assert b"hush" not in contract.redact(secret).SerializeToString()


def test_output_only_fields_are_dropped() -> None:
    cluster = Cluster(spec={"login": {"port": 7}}, status={"slurm_version": "24.11"})
    contract.clear_output_only(cluster)
    assert not cluster.HasField("status")
    assert cluster.spec.login.port == 7


def test_input_only_fields_are_dropped() -> None:
    release = contract.message("nebius.applications.v1alpha1.K8sReleaseSpec")(values="v", namespace="n")
    contract.clear_input_only(release)
    assert (release.values, release.namespace) == ("", "n")

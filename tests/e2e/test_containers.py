"""SLURM-09: jobs in containers, with the options of Pyxis, on a real cluster. Images are made here."""

import gzip
import json
import shlex
import tarfile
from collections.abc import Iterator

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cluster import SHARED, Cluster
from tests.e2e.registry import IMAGES, run, serving
from tests.fast.container_images import (
    add,
    busybox_layer,
    layer,
    write_docker_archive,
    write_layout,
    zstd,
    zstd_chunked,
)

SETTINGS = {"Env": ["PATH=/bin", "GREETING=from the image"], "WorkingDir": "/work"}


@pytest.fixture(scope="module")
def registry(bank: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Put images into the shared root; provide the address of a registry that has them, too."""
    folder = tmp_path_factory.mktemp("containers") / "images"
    tiny = busybox_layer()
    write_layout(folder / "tiny", [tiny], SETTINGS)
    write_layout(folder / "library" / "tiny", [tiny], SETTINGS)  # of Docker Hub
    write_layout(folder / "private", [tiny], SETTINGS)
    links = layer(lambda archive: add(archive, "mnt", kind=tarfile.SYMTYPE, target="/../../etc"))
    write_layout(folder / "links", [tiny, links], SETTINGS)
    write_docker_archive(folder / "tiny.tar", tiny)
    more = layer(lambda archive: add(archive, "etc/second", b"second\n"))
    write_layout(folder / "zstd", [tiny, more], SETTINGS, packed={0: zstd, 1: zstd})
    write_layout(folder / "mixed", [tiny, more], SETTINGS, packed={0: gzip.compress, 1: zstd})
    write_layout(folder / "chunked", [tiny, more], SETTINGS, packed={0: zstd_chunked, 1: zstd})
    nix = layer(
        lambda archive: add(archive, "etc/passwd", kind=tarfile.SYMTYPE, target="/nix/store/x/passwd")
    )
    write_layout(folder / "nix", [tiny, nix], SETTINGS)
    bare = layer(lambda archive: add(archive, ".wh.etc"))
    write_layout(folder / "bare", [tiny, bare], SETTINGS)
    with serving(bank, folder) as address:
        yield address


def test_an_image_of_the_shared_root_or_a_registry_is_where_a_step_runs(bank: Cluster, registry: str) -> None:
    look = "sh -c 'cat /etc/made-by; pwd; echo $GREETING'"
    # The last name has no registry, so it is Docker Hub's, for which the user's settings name ours first.
    names = (f"{IMAGES}/tiny", f"docker://{registry}/tiny:1", f"{registry}#tiny:latest", "tiny:1")
    for name in names:
        said = run(bank, f"--container-image={name}", look).splitlines()[-3:]
        assert said == ["test", "/work", "from the image"], name
    # Where an image names no folder, the job's own is where tasks start.
    said = run(bank, "--container-image=./images/tiny.tar", "sh -c 'cat /etc/made-by; pwd'")
    assert said.splitlines()[-2:] == ["test", SHARED]
    assert bank.try_ssh("ls /etc/made-by").returncode  # nothing of it is in the shared root


def test_images_as_other_tools_write_them(bank: Cluster, registry: str) -> None:
    """Layers of zstd alone, beside others and in chunks; a tag with a digest, which counts."""
    for name in ("zstd", "mixed", "chunked"):
        said = run(bank, f"--container-image={registry}#{name}:1", "cat /etc/made-by /etc/second")
        assert said.splitlines()[-2:] == ["test", "second"], said
    index = json.loads(bank.ssh(f"cat {IMAGES}/tiny/index.json"))
    for name in (f"{registry}#tiny:1", f"docker://{registry}/tiny:of-another", f"{registry}#tiny"):
        image = f"{name}@{index['manifests'][0]['digest']}"
        assert run(bank, f"--container-image={image}", "cat /etc/made-by").endswith("test")


@pytest.mark.parametrize("image", ["nix", "bare", "tiny"])
def test_a_user_has_a_name_in_every_image(bank: Cluster, registry: str, local_user: str, image: str) -> None:
    """Also where it has no /etc, or /etc/passwd is a link."""
    bank.ssh(f"chmod -R a+rX {IMAGES}")
    step = f"srun --quiet --container-image={IMAGES}/{image} sh -c 'id; ls -l /etc/passwd'"
    said = bank.ssh(f"cd / && su {local_user} -c {shlex.quote(step)}")
    number = bank.ssh(f"id -u {local_user}")
    assert f"uid={number}({local_user}) gid={bank.ssh(f'id -g {local_user}')}({local_user})" in said
    assert " -> " not in said


def test_memory_that_a_container_mounts_is_the_jobs_own(bank: Cluster, registry: str) -> None:
    """Its files count as nobody's memory, so that one job could take that of all."""
    size = "stat -f -c %b /big; stat -f -c %b /tmp"
    mounts = "--container-mounts=tmpfs:/big,tmpfs:/more"
    fill = (
        "for to in /big/x /more/x; do dd if=/dev/zero of=$to bs=1048576 count=4000; done 2>&1 | grep -c space"
    )
    write = "ls -ld /big /more | cut -c1-10; id -u; touch /big/mine"
    options = f"--mem=500 --container-image={IMAGES}/tiny {mounts}"
    said = run(bank, options, f"sh -c {shlex.quote(f'{size}; {fill}; {write}')}")
    big, tmp, full, *modes = said.splitlines()[-6:-1]
    assert big == tmp and full == "2" and modes == ["drwxrwxrwt"] * 2
    # The next step finds it empty, also in a container with a name.
    named = f"{options} --container-name=one"
    steps = (f"srun --quiet {named} {command}" for command in ("touch /big/left", "ls /big", "true"))
    said = bank.run_job(f"{'; '.join(steps)}; echo end")
    assert said.splitlines()[-1] == "end" and "left" not in said


def test_two_tasks_and_two_steps_import_an_image_once(bank: Cluster, registry: str) -> None:
    bank.ssh(f"rm -rf ~/.cache/neocloud {IMAGES}/asked")
    step = f"srun --quiet --ntasks=2 --overlap --mem=100 --container-image={registry}#tiny hostname"
    said = bank.run_job(f"{step} & {step} & wait", "--nodes=2", "--ntasks-per-node=1")
    assert (
        sorted(line for line in said.splitlines() if line.startswith("worker-"))
        == ["worker-0"] * 2 + ["worker-1"] * 2
    )
    asked = bank.ssh(f"cat {IMAGES}/asked").splitlines()
    layers = [path for path in asked if "/blobs/" in path]
    assert len(layers) == len(set(layers)) + 1, asked  # the configuration is looked at before, too


def test_mounts_home_and_the_working_directory(bank: Cluster, registry: str) -> None:
    bank.ssh("mkdir -p /mnt/set && echo data > /mnt/set/file && echo mine > ~/mine")
    image = f"--container-image={IMAGES}/tiny"
    said = run(
        bank,
        f"{image} --container-mounts=/mnt/set:/data,/mnt/set:/kept/here:ro --container-workdir=/data",
        "sh -c 'pwd; cat file /kept/here/file ~/mine; touch new; touch /kept/here/new || echo read-only'",
    )
    lines = said.splitlines()  # those of the shell's errors come at any place
    assert [line for line in lines if line in {"/data", "data", "mine", "read-only"}] == [
        *("/data", "data", "data", "mine", "read-only")
    ]
    assert bank.ssh("ls /mnt/set").split() == ["file", "new"]
    said = run(bank, f"{image} --no-container-mount-home", "ls /root/mine", code=1)
    assert "No such file" in said
    said = run(bank, f"{image} --container-readonly", "touch /etc/new", code=1)
    assert "Read-only" in said
    said = run(bank, f"{image} --container-env=GREETING --export=ALL,GREETING=mine", "sh -c 'echo $GREETING'")
    assert said.endswith("mine")
    # A link of the image does not lead a mount out of it.
    run(bank, f"--container-image={IMAGES}/links --container-mounts=/mnt/set:/mnt/new", "cat /etc/new/file")
    assert bank.try_ssh("ls /etc/new").returncode
    bank.ssh("rm -r /mnt/set ~/mine")


def test_a_named_container_lasts_as_long_as_its_job(bank: Cluster, registry: str) -> None:
    image = f"--container-image={IMAGES}/tiny"
    said = bank.run_job(
        f"srun --quiet {image} --container-name=mine touch /kept\n"
        "srun --quiet --container-name=mine ls /kept\n"
        f"srun --quiet {image} --container-name=mine:create true && echo wrong\n"
        f"srun --quiet {image} ls /kept && echo wrong\n"
        "srun --quiet --overlap --mem=100 --container-name=mine sh -c 'touch /ready; sleep 60' &\n"
        "until srun --quiet --overlap --mem=100 --container-name=mine ls /ready; do :; done\n"
        "kill %1\nls /tmp",
        "--nodelist=worker-0",
    )
    assert "/kept" in said.split() and "/ready" in said.split() and "wrong" not in said
    assert "neocloud-containers-0" in said
    assert "there is no container mine" in run(bank, "--nodelist=worker-0 --container-name=mine", code=1)
    bank.wait_until_idle()
    count = ("sh", "-c", "pgrep --count --exact container-roots")
    wait_until(lambda: bank.in_pod("worker-0", *count).strip() == "1", "nothing keeps a container")


def test_a_container_is_saved_and_started_again(bank: Cluster, registry: str) -> None:
    saved = f"{IMAGES}/saved.sqsh"
    run(
        bank,
        f"--container-image={IMAGES}/tiny --container-save={saved}",
        "sh -c 'echo changed > /etc/made-by'",
    )
    said = run(bank, f"--container-image={saved}", "sh -c 'cat /etc/made-by; pwd; echo $GREETING'")
    assert said.splitlines()[-3:] == ["changed", "/work", "from the image"]


def test_a_batch_script_and_an_allocation_run_in_a_container(bank: Cluster, registry: str) -> None:
    option = f"--container-image={IMAGES}/tiny"
    bank.ssh(f"cat > {SHARED}/inside.sh", stdin="#!/bin/sh\ncat /etc/made-by\n")
    job = bank.ssh(f"cd {SHARED} && sbatch --parsable {option} inside.sh")
    assert bank.wait_for_job(job) == "COMPLETED" and bank.output_of(job).endswith("test")
    assert (
        "test" in bank.ssh(f"salloc --quiet --ntasks=1 {option} srun --quiet cat /etc/made-by").splitlines()
    )


def test_names_of_enroot_with_a_user_take_the_password_of_its_credentials(
    bank: Cluster, registry: str
) -> None:
    look = "cat /etc/made-by"
    assert "the registry refuses" in run(bank, f"--container-image={registry}#private", look, code=1)
    said = run(bank, f"--container-image=ann@{registry}#private", look, code=1)
    assert f"machine {registry} login ann password" in said
    lines = f"machine {registry} login bob password other\nmachine {registry} login ann password secret\n"
    bank.ssh("mkdir -p ~/.config/enroot && cat > ~/.config/enroot/.credentials", stdin=lines)
    try:
        said = run(bank, f"--container-image=docker://ann@{registry}#private:1", look)
        assert said.splitlines()[-1] == "test"
    finally:
        bank.ssh("rm -r ~/.config/enroot")
    assert not bank.try_ssh("grep -rsl YW5uOnNlY3JldA ~/.cache ~/.config").stdout  # nowhere on the disk


def test_a_user_seems_to_be_root_and_has_the_rights_of_a_user(
    bank: Cluster, registry: str, local_user: str
) -> None:
    """--container-remap-root, with attempts to use it."""
    bank.ssh(f"chmod -R a+rX {IMAGES}")
    look = (
        "id -u; chown 5:5 /etc/made-by && echo changed; touch /out/new; cat /host/shadow || echo closed;"
        " kill -0 1 || echo apart; sed -n s/CapEff:.//p /proc/self/status"
    )
    mounts = f"--container-mounts=/etc:/host,/home/{local_user}:/out"

    def words(option: str) -> list[str]:
        step = f"srun --quiet --container-image={IMAGES}/tiny {option} {mounts} sh -c {shlex.quote(look)}"
        return bank.ssh(f"cd / && su {local_user} -c {shlex.quote(step + ' 2>/dev/null')}").split()

    number, none = bank.ssh(f"id -u {local_user}"), "0000000000000000"
    assert words("--container-remap-root") == ["0", "changed", "closed", "apart", none]
    assert words("--no-container-remap-root") == [number, "closed", "apart", none]
    assert bank.ssh(f"stat -c %u /home/{local_user}/new") == number

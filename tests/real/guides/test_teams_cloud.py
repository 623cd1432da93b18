"""The page about a team's cloud is followed on two machines: the cloud's, and a colleague's laptop."""

import subprocess
from pathlib import Path

from tests import leftovers
from tests.fast.guides.blocks import ROOT, Block, blocks_of
from tests.real.guides.session import Reader, environment_of, run_page
from tests.two_machines import Machine, two_machines

PAGE = ROOT / "docs" / "guides" / "a-teams-cloud.md"
SECOND_MACHINE = "tests/real/emulator/test_second_machine.py"
FOR_SCRIPTS = f"{SECOND_MACHINE}::test_a_wrong_fingerprint_is_refused_before_the_password_is_sent"
OWN_CERTIFICATE = f"{SECOND_MACHINE}::test_a_certificate_of_another_authority_is_served_and_trusted"
BY_ACME = f"{SECOND_MACHINE}::test_a_certificate_is_ordered_by_acme_and_the_laptop_trusts_it"
ON_SLURM = "tests/long/test_two_clouds.py::test_ssh_and_scp_work_from_a_laptop"
PORTS = "--grpc-port 7370 --http-port 7371 --tls-port 7372 --https-port 7374"
"""Those of a real cloud. An emulator takes free ones by default; in a network of its own all are free."""
NOT_RUN = {
    "neo up --listen all --acme-domain": BY_ACME,
    "neo up --listen all --tls": OWN_CERTIFICATE,
    "neo login https://192.0.2.7:7374 alice@bank.example --password-stdin": FOR_SCRIPTS,
    "neo login https://192.0.2.7:7374 --credentials": OWN_CERTIFICATE,
    "cat > first.sbatch": ON_SLURM,
    "neo slurm job": ON_SLURM,
    "neo ssh lab": ON_SLURM,
    "neo slurm cluster ssh-config lab": ON_SLURM,
    "scp -F lab.ssh": ON_SLURM,
    "import ssl": "needs a gateway: tests/real/model_gateway/test_other_machines.py",
}


def test_a_colleague_follows_the_page(tmp_path: Path) -> None:
    blocks = blocks_of(PAGE)
    on_laptop = next(
        number for number, line in enumerate(PAGE.read_text().splitlines(), 1) if line == "## On the laptop"
    )
    leftovers.record(tmp_path / "cloud")
    with two_machines(tmp_path) as (cloud, laptop):
        _add_address(cloud, "192.0.2.7/24")
        _add_address(laptop, "192.0.2.8/24")
        home = {"NEOCLOUD_HOME": str(tmp_path / "cloud")}
        emulated = Reader(not_run=NOT_RUN, stands_for={"neo up ": f"neo up --emulator {PORTS} "})
        try:
            said = _follow([block for block in blocks if block.line < on_laptop], emulated, cloud, home)
            password = next(reversed(said.values())).split()[-1]
            colleague = Reader(not_run=NOT_RUN, types={"same? [y/N]:": "y", "Password:": password})
            seen = _follow([block for block in blocks if block.line > on_laptop], colleague, laptop, {})
            assert "alice@bank.example" in next(iter(seen.values()))
        finally:
            cloud.neo("destroy", "--yes", **home)
    leftovers.forget(tmp_path / "cloud")


def test_every_command_that_is_left_out_is_on_the_page() -> None:
    text = PAGE.read_text()
    assert not [start for start in NOT_RUN if f"\n{start}" not in text]


def _follow(blocks: list[Block], reader: Reader, machine: Machine, more: dict[str, str]) -> dict[str, str]:
    folder = machine.home_directory / "reader"
    (folder / "work").mkdir(parents=True)
    environment = environment_of(machine.home_directory, folder / "cache", **more)
    said = run_page(blocks, reader, folder, environment, ["ip", "netns", "exec", machine.namespace])
    return {place: text for place, text in said.items() if text.strip()}


def _add_address(machine: Machine, address: str) -> None:
    words = ["ip", "-n", machine.namespace, "address", "add", address, "dev", "cable"]
    subprocess.run(words, check=True, capture_output=True)

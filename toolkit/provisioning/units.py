"""The systemd units of a fleet: the device agent, the aggregator, and the broker beside it.

They need systemd 252, the version of Debian 12 and Raspberry Pi OS. It restarts after a constant
time (RestartSteps= came with 254), so `broker.backoff` waits before each start, longer after each
failure; with StartLimitIntervalSec=0 systemd does not limit the number of starts.

A program that failed because of its environment is always restarted: the owner of the broker may
admit it later, and a device looks for a new pack at each start. Only after a wrong command line
(exit code 2) a restart cannot help, and an aggregator that a newer one has replaced (exit code 4)
must not come back.
"""

from __future__ import annotations

from profiles import Profile

PYTHON = "/opt/stemshare/bin/python"  # the virtual environment with stemshare[device] or [broker]
CONFIGURATION = "/etc/stemshare"
DEVICE_UNIT = "stemshare-device.service"
AGGREGATOR_UNIT = "stemshare-aggregator.service"
BROKER_UNIT = "stemshare-broker.service"
AGGREGATOR_OPTIONS = "options"
_USAGE = 2  # exit code after a wrong command line
_SUPERSEDED = 4  # exit code of an aggregator that a newer one of its fleet has replaced
_STOPPED = 130  # exit code of a device after SIGTERM
_WAIT_SECONDS = 300  # the longest that broker.backoff waits
_DEVICE_WATCHDOG = "10min"  # an evaluation on a slow board gives no sign of life
_AGGREGATOR_WATCHDOG = "1min"  # an iteration of its loop takes seconds at most

# No program of a fleet needs these rights. Not ProcSubset=pid: the runtime reads /proc/cpuinfo.
_HARDENING = """\
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
"""


def device_unit(fleet: str, device: str, memory_cap_mib: int) -> str:
    """Returns the unit of a device that runs from its pack.

    It has a fixed user instead of DynamicUser=, because a pack is larger than the 1 MB limit of
    LoadCredential=.
    """
    state = "/var/lib/stemshare-device"
    command = (
        f"{PYTHON} -m firmware_sim.device --pack {state}/device.pack "
        f"--trust {CONFIGURATION}/trust.key --state {state}"
    )
    return f"""\
[Unit]
Description=Device {device} of fleet {fleet}
Wants=network-online.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
User=stemshare
StateDirectory=stemshare-device
StateDirectoryMode=0700
{_running(command, f"{state}/failures", _DEVICE_WATCHDOG, _USAGE)}
SuccessExitStatus={_STOPPED}
# memory_cap_mib of the profile; the device itself stops cleanly when it has taken so much.
MemoryMax={memory_cap_mib}M
MemorySwapMax=0
Nice=10

{_HARDENING}
[Install]
WantedBy=multi-user.target
"""


def aggregator_unit(fleet: str, url: str, host: Profile, *, signed: bool) -> str:
    """Returns the unit of the aggregator on a machine with the profile `host`.

    With LoadCredential= only systemd can read the files of the password and the keys. The list of
    members is read in its place, since it may change while the aggregator runs.
    """
    state = "/var/lib/stemshare-aggregator"
    folder = f"{CONFIGURATION}/aggregator"
    files = ["password", "ca.pem", "certificate.pem", "key.pem"]
    signing = ""
    if signed:
        files.append("signing.key")
        signing = "--signing-key %d/signing.key "
    credentials = "\n".join(f"LoadCredential={name}:{folder}/{name}" for name in files)
    # A third of the memory for incoming updates; outgoing messages may take the same.
    command = (
        f"{PYTHON} -m broker.aggregator --fleet {fleet} --broker {url} --user aggregator "
        "--password-file %d/password --ca-file %d/ca.pem --certificate-file %d/certificate.pem "
        f"--key-file %d/key.pem {signing}--members {folder}/members --state {state} "
        f"--inbox-mib {host.memory_cap_mib // 3} $OPTIONS"
    )
    return f"""\
[Unit]
Description=Aggregator of fleet {fleet}
Wants=network-online.target
After=network-online.target time-sync.target {BROKER_UNIT} mosquitto.service
StartLimitIntervalSec=0

[Service]
DynamicUser=yes
StateDirectory=stemshare-aggregator
StateDirectoryMode=0700
{credentials}
EnvironmentFile={folder}/{AGGREGATOR_OPTIONS}
{_running(command, f"{state}/failures", _AGGREGATOR_WATCHDOG, _USAGE, _SUPERSEDED)}
# memory_cap_mib of profile {host.name}
MemoryMax={host.memory_cap_mib}M

{_HARDENING}
[Install]
WantedBy=multi-user.target
"""


def aggregator_options() -> str:
    """Returns the options that the owner of the fleet edits; the file is written once."""
    return f"""\
# The rest of the aggregator's command line, in one line; `python -m broker.aggregator --help`.
OPTIONS=--slice {CONFIGURATION}/aggregator/shared.onnx --quorum 1
"""


def broker_unit() -> str:
    """Returns the unit of a mosquitto for this fleet, independent of others on the machine."""
    return f"""\
[Unit]
Description=MQTT broker of the fleet
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
User=mosquitto
StateDirectory=stemshare-broker
StateDirectoryMode=0700
WorkingDirectory=/var/lib/stemshare-broker
ExecStart=/usr/sbin/mosquitto -c mosquitto.conf
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5s

{_HARDENING}
[Install]
WantedBy=multi-user.target
"""


def _running(command: str, failures: str, watchdog: str, *final: int) -> str:
    """Returns the lines for start, watchdog and restart, but after the `final` exit codes."""
    return f"""\
Type=notify
Environment=PYTHONUNBUFFERED=1
ExecStartPre={PYTHON} -m broker.backoff wait {failures}
ExecStart={command}
ExecStopPost={PYTHON} -m broker.backoff ended {failures}
TimeoutStartSec={2 * _WAIT_SECONDS}s
WatchdogSec={watchdog}
Restart=on-failure
RestartSec=1s
RestartPreventExitStatus={" ".join(map(str, final))}"""

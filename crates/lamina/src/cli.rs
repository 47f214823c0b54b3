//! The command line: commands, options, and their help. No command runs here.

mod calibrate;
mod change;
mod predict;
mod serve;
mod vault;
mod watch;

use crate::complete;
pub use calibrate::{Calibrate, Mechanism};
pub use change::{Apply, Import, Replace, Resize};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::ArgValueCandidates;
use lamina_block::{Bytes, Interval};
pub use predict::Predict;
pub use serve::{Serve, ServeOptions};
use std::path::PathBuf;
pub use vault::{Cluster, Vault, VaultAction};
pub use watch::{Events, Map, Show, Status, Top, Why};

pub(crate) const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong command line or hierarchy file. For a \
                                     request that a daemon refused or failed: 2 invalid, 5 not found, 6 unsupported; 7 \
                                     busy, 8 read-only, 9 fenced, 10 cancelled, 11 offline, 12 timed out, 13 no space, \
                                     14 media, 15 corrupt, 16 truncated, 17 bad memory.";

/// Storage under virtual machines: serves disks through a graph of layers.
#[derive(Debug, Parser)]
#[command(name = "lamina", version, after_help = EXIT_CODES, propagate_version = true)]
pub struct Cli {
    /// The messages to log to standard error: a level, or targets with levels ("info", "lamina_nbd=debug,info").
    #[arg(long, global = true, env = "RUST_LOG", value_name = "FILTER", hide_env_values = true)]
    pub log: Option<String>,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check hierarchy files and draw their trees; with --metadata, check the contents of their members.
    Check(Check),
    /// Repair damage on the members of a persistent hierarchy that is not served, and report the rest.
    ///
    /// Each member has two superblocks: a damaged one is written again from the other. A layer rebuilds metadata that
    /// follows from other metadata: the extents in use, from the maps of a volume and its snapshots; leaked space is
    /// freed. For metadata without a second copy the report names the bytes that are lost with it, and for a damaged
    /// page of a layer's metadata the owner of the page. No readable data is given up. `lamina check --metadata`
    /// reports the same and changes nothing.
    Repair(Repair),
    /// Serve the exports of hierarchy files until told to stop (SIGTERM or SIGINT).
    ///
    /// Prints one line for each export and then `ready`. The first signal drains: no new clients, requests in flight
    /// are completed, devices are flushed and closed. The second ends the program at once.
    Serve(Serve),
    /// Make the members of a persistent hierarchy: write superblocks to its devices.
    ///
    /// The hierarchy file needs a table [hierarchy] with a name. The command first shows every write to come. A device
    /// that carries anything known (a file system, a partition table, a member) is refused.
    Create(Create),
    /// Propose a hierarchy file for the wanted properties, with reasons: the failures that each layer survives, and its
    /// costs.
    ///
    /// The file is printed; nothing is made. Devices that do not exist yet will be files.
    #[command(
        after_help = "Example: lamina design --survive 1 --encrypt --snapshots --checksums --devices a.img,b.img,c.img \
                      --size 20GiB > vm1.toml"
    )]
    Design(Design),
    /// Find the hierarchy that devices carry, whatever their present names, and print its file.
    ///
    /// A folder stands for all devices and images in it. Missing members are searched for beside the named ones.
    /// Devices are only read.
    #[command(after_help = "Example: lamina assemble /dev/sdb /dev/sdc > vm1.toml")]
    Assemble(Assemble),
    /// Show a running daemon's devices: rates, queue, latencies.
    Show(Show),
    /// Watch a running daemon's devices in the terminal: tree, rates, self time, jobs, events.
    ///
    /// SELF is the mean time of a request in the device itself, without the devices below, and SHARE its part of the
    /// whole time; both are of the requests that `lamina why` looks at. Enter shows one device in depth, and ? all
    /// keys. 80 columns and 24 lines are enough.
    #[command(after_help = "Examples: lamina top; lamina top --control vm.toml.ctl.sock --interval 2s")]
    Top(Top),
    /// Show the hosts and volumes of a cluster, as a running daemon knows them.
    ///
    /// For each host: where it takes the writes of others, and how long ago it was heard. For each volume: the host
    /// that has it, the flashes that have its writes, the data that the store lacks, and, in a sentence, what the
    /// volume survives now and which command helps. The daemon answers at once, from what it knows: it waits for no
    /// store, no vault and no host. `lamina vault` reads the vault itself, without a daemon.
    Cluster(Cluster),
    /// Say whether everything that a running daemon serves is well: a line for each hierarchy.
    ///
    /// `ok`; `degraded` if everything is served, and something is missing, failing or nearly full; `failed` if an
    /// exported device is not there. The alerts that follow are those of the metric lamina_alert.
    #[command(
        after_help = "Exit codes: 0 ok, 3 degraded, 4 failed; 1 the daemon cannot be asked, 2 wrong command line."
    )]
    Status(Status),
    /// Send a command to a device of a running daemon, or steer its background work.
    ///
    /// `lamina ctl DEVICE help` lists the commands of a device and their arguments. Arguments stand in their order, or
    /// anywhere as name=value, or all together in one JSON object. `lamina ctl DEVICE info` shows the kind of a device,
    /// and its state. `lamina ctl DEVICE job NAME ACTION` steers the work that `lamina jobs` lists: pause, resume,
    /// cancel, or limit=RATE (bytes a second, such as 50MiB, or none).
    ///
    /// A command that loses data which it does not name (the present state of a volume, the data beyond a smaller size)
    /// asks for confirmation at a terminal, and elsewhere needs --force.
    #[command(
        after_help = "Examples: lamina ctl disk create root 10GiB; lamina ctl san resize size=2GiB; lamina ctl disk \
                      job zero limit=50MiB"
    )]
    Ctl(Ctl),
    /// List the background work of a running daemon's devices: progress, rate, time left.
    Jobs(Jobs),
    /// Show what has happened to a running daemon's devices: the last 1,000 events, the newest last.
    ///
    /// An event is a line of the log that is about a device, or a warning. One that happens again, with nothing else to
    /// that device in between, is shown once, and how often. Times are UTC. `lamina serve --events FILE` keeps events
    /// across restarts, and `--on-event PROGRAM` tells a program of each.
    #[command(after_help = "Examples: lamina events vm1; lamina events --follow --json")]
    Events(Events),
    /// Say why an export is slow: where the time of its requests goes.
    ///
    /// Some requests of each export are looked at, a hundred a second unless `lamina serve --samples` says otherwise.
    /// At each moment the time counts for what the request waited for; of several devices, for the one that ended last.
    #[command(after_help = "Examples: lamina why vm1; lamina why vm1 --json")]
    Why(Why),
    /// Show where a byte of a device or an export lies: on each device below, down to the disks.
    ///
    /// OFFSET is in bytes, or with a unit. For each device that has the byte now: what it has (the data, a parity, a
    /// copy in a cache), and the address there. Copies that are out of date are left out.
    #[command(after_help = "Example: lamina map vm1 4GiB")]
    Map(Map),
    /// Change the hierarchies of a running daemon to those of a file, while clients use them.
    ///
    /// Prints the steps, and then the progress of background work. Requests wait while layers are exchanged; none
    /// fails.
    ///
    /// An impossible change is refused before the first step. Where data has to be moved, the change has stages, and
    /// after an error the finished stages stay: the present state is served, the message describes it, the same file
    /// leads on from there, and the earlier file leads back when all data was moved. Ctrl-C ends this program and not
    /// the change, which runs in the daemon: `lamina jobs` shows the move, `lamina ctl DEVICE job move cancel` stops
    /// it. A daemon that is killed meanwhile can be started with the earlier file or with this one: it serves the
    /// present state and goes on.
    Apply(Apply),
    /// Another disk takes the place of a member of a served hierarchy, such as a leg of a mirror, while clients work.
    ///
    /// The file that the daemon was started with gets a device over the new disk in place of the old one, and is
    /// applied; the earlier file is kept as NAME.orig. The command ends when the new disk has everything. The old disk
    /// may have failed, or be gone. Ctrl-C ends this program and not the change: `lamina jobs` shows its progress.
    Replace(Replace),
    /// Make a device larger while clients work, and the devices below it as far as that takes.
    ///
    /// Files become larger; where a device below is a block device, an image of Ceph or the export of another server,
    /// that is to be larger first. A thin volume gets space for all its bytes; `lamina ctl DEVICE resize` makes it
    /// larger than the space below. Each command to a device is printed. Nothing becomes smaller.
    #[command(after_help = "Example: lamina resize vm1 40GiB")]
    Resize(Resize),
    /// Copy an image of a virtual machine, such as a qcow2, into a served device, with its internal snapshots.
    ///
    /// `qemu-img` and `qemu-nbd` (Debian: qemu-utils) read the image, whose machine is off. Each snapshot in it becomes
    /// one of the device; then the present state is copied. Blocks that are the same are not written, so that the
    /// states share them. Bytes of the device behind the end of the image stay as they are.
    #[command(after_help = "Examples: lamina import vm1.qcow2 vm1; lamina import --format vmdk old.vmdk vm1")]
    Import(Import),
    /// Describe a disk or image: size, sectors, known signatures, users.
    Inspect(Inspect),
    /// List the disks of this machine: contents, users, and the hierarchies that they carry.
    ///
    /// Nothing is written, and nothing locked.
    Scan(Scan),
    /// Put load on a device of a hierarchy file or on an NBD server, and report rates and latencies.
    ///
    /// TARGET is a hierarchy file, `nbd+unix:///EXPORT?socket=PATH`, or `nbd://HOST[:PORT]/EXPORT`. This command opens
    /// a hierarchy itself: no daemon may serve it at the same time. Writing overwrites data: where there may be some,
    /// the command asks for confirmation at a terminal, and elsewhere needs --force.
    Bench(Bench),
    /// Predict how schedulers and drives would do: a workload on simulated drives, in virtual time.
    ///
    /// The layers are the real ones, those of a hierarchy file or a queue above one drive; hours of a drive take
    /// seconds. No disk is opened. Each policy runs with several seeds, the same for all: a policy ranks above another
    /// only if the 95% confidence interval of the difference does not have 0 in it. Service is the time of a request at
    /// the drive, response the time that its client waits. The time that processors take is left out.
    #[command(
        after_help = "Examples: lamina predict --model cheetah-15k4; lamina predict vm.toml --model cheetah-15k4 \
                      --replace disk=ssd-sata --workload trace:week.csv --policy deadline,cats"
    )]
    Predict(Predict),
    /// Record what a device or an export of a running daemon is asked, without data.
    ///
    /// The file has a line for each request: microseconds, operation (R, W, F for flush, D for discard), name, offset
    /// and size in bytes. `lamina bench --workload trace:FILE` and `lamina predict --workload trace:FILE` replay it. A
    /// device that is not being traced pays nothing for this. Ctrl-C ends the trace.
    #[command(after_help = "Example: lamina trace vm1 --for 60s -o vm1.csv")]
    Trace(Trace),
    /// Measure a drive, and write the model that behaves like it in time.
    ///
    /// DEVICE, a disk or a file, is read past the page cache and never written. Random pages give the paper's line of
    /// time over distance; probes give rotation, zones, skews, seeks and the cache of a hard disk. The findings go to
    /// standard error with how sure each of them is, the model to -o or to standard output.
    ///
    /// With --probe a program stands in for the drive. It reads lines `R lbn sectors think_us` (sectors of 512 bytes;
    /// think_us: microseconds of the drive's time between the last answer and this request) and answers each with a
    /// line: the microseconds that the request took. A request beyond the end is refused by any other line, or by the
    /// end of the program; that is how the size is found.
    #[command(
        after_help = "Examples: lamina calibrate /dev/sdb -o sdb.toml; lamina calibrate --probe './disk --seed 3' -o \
                      m.toml"
    )]
    Calibrate(Calibrate),
    /// Show which hosts have the volumes of a vault, and settle what no host may decide.
    ///
    /// A vault is what devices of kind `reservation` name: a folder, or etcd; without that key it is with their store,
    /// whose URI is given here. Without an action: its volumes, the host that has
    /// each of them, and where the writes are that the store lacks. Nothing is asked of any daemon.
    #[command(after_help = "Examples: lamina vault /mnt/shared/vault; lamina vault nbd://store:10809/disk \
                      accept-loss vm1")]
    Vault(Vault),
    /// List the kinds of layers that a hierarchy file may use.
    Kinds(Kinds),
    /// Print a completion script for a shell.
    Completions(Completions),
    /// Write the manual pages into a folder.
    Man(Man),
}

/// Arguments of `check`.
#[derive(Args, Debug)]
pub struct Check {
    /// Hierarchy files.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Read the superblocks of all members and all metadata of layers, let the layers verify it, and report every
    /// damage: DAMAGED if it can be repaired, else LOST; leaked space is UNUSED, and no damage. The hierarchies must be
    /// persistent, and must not be served. Nothing is changed.
    #[arg(long)]
    pub metadata: bool,
}

/// Arguments of `repair`.
#[derive(Args, Debug)]
pub struct Repair {
    /// The hierarchy file.
    pub file: PathBuf,
}

/// Arguments of `design`.
#[derive(Args, Debug)]
pub struct Design {
    /// Devices and images to build it from.
    #[arg(long, required = true, value_delimiter = ',', value_name = "DEVICE,...")]
    pub devices: Vec<PathBuf>,
    /// The size of the disk.
    #[arg(long, value_name = "SIZE")]
    pub size: Bytes,
    /// How many devices may be lost, whichever they are.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub survive: usize,
    /// The more important goal where both cannot be had.
    #[arg(long, value_enum, default_value = "space")]
    pub prefer: Prefer,
    /// The devices cannot be read without a key.
    #[arg(long)]
    pub encrypt: bool,
    /// Earlier states can be kept.
    #[arg(long)]
    pub snapshots: bool,
    /// Wrong bytes are noticed.
    #[arg(long)]
    pub checksums: bool,
    /// The name of the hierarchy and of its disk.
    #[arg(long, value_name = "NAME", default_value = "vm1")]
    pub name: String,
}

/// The goal that `design` gives up last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Prefer {
    /// Bytes that can be used.
    Space,
    /// Small writes.
    Speed,
}

/// Arguments of `create`.
#[derive(Args, Debug)]
pub struct Create {
    /// The hierarchy file.
    pub file: PathBuf,
    /// Overwrite the devices: their data is lost.
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `assemble`.
#[derive(Args, Debug)]
pub struct Assemble {
    /// Block devices, images, and folders of them.
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    /// Serve the hierarchy instead of printing its file. Relative paths in it begin in this folder.
    #[arg(long)]
    pub serve: bool,
    /// How to serve.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// Where a running daemon is reached.
#[derive(Args, Clone, Debug)]
pub struct Daemon {
    /// The daemon's control socket [default: the only *.ctl.sock in this folder].
    #[arg(long, value_name = "SOCKET", env = "LAMINA_CONTROL")]
    pub control: Option<PathBuf>,
}

/// Arguments of `ctl`.
#[derive(Args, Debug)]
pub struct Ctl {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// The device's name in its hierarchy file; without a name the devices are listed, with their commands.
    #[arg(add = ArgValueCandidates::new(complete::devices))]
    pub device: Option<String>,
    /// The command, such as `resize`; `help` explains all that the device has, as does a name without a command.
    #[arg(id = "verb", value_name = "COMMAND", default_value = "help", hide_default_value = true,
        add = ArgValueCandidates::new(complete::commands))]
    pub command: String,
    /// Its arguments: in their order, or name=value, or one JSON object.
    #[arg(value_name = "ARGUMENT", add = ArgValueCandidates::new(complete::arguments))]
    pub args: Vec<String>,
    /// Do not ask for confirmation of a loss of data.
    #[arg(long)]
    pub force: bool,
    /// Print the answer as JSON at a terminal, too. Elsewhere it always is.
    #[arg(long)]
    pub json: bool,
    /// Draw an answer that has cells by address, such as that of `heat-map`: here, or as SVG into a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub draw: Option<Option<PathBuf>>,
}

/// Arguments of `jobs`.
#[derive(Args, Debug)]
pub struct Jobs {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inspect`.
#[derive(Args, Debug)]
pub struct Inspect {
    /// A block device or an image file.
    pub device: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `scan`.
#[derive(Args, Debug)]
pub struct Scan {
    /// Block devices, images, and folders of them [default: the block devices of this machine].
    #[arg(value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The operations of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mix {
    /// Only reads.
    Read,
    /// Only writes.
    Write,
    /// Reads and writes, as --reads says.
    Mixed,
}

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub struct Bench {
    /// A hierarchy file or an NBD URI.
    pub target: String,
    /// The device or export of the hierarchy file [default: its only export]. For a workload there may be several, ways
    /// to the same disk, which the workload's clients share evenly.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub device: Vec<String>,
    /// Reads, writes, or both.
    #[arg(long, value_enum, default_value = "read")]
    pub rw: Mix,
    /// Of 100 requests of a mixed load, so many are reads.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub reads: u8,
    /// Bytes of each request.
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub block_size: Bytes,
    /// Requests in flight.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub depth: u32,
    /// Connections to an NBD server, at most 16; of a workload at most 1024, which its clients share: a server knows
    /// clients by their connections.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub connections: u32,
    /// A workload with sleeps and waits of its own, instead of a constant load: `web` (50 clients of a web file server,
    /// with direct reads), `web:cached` (through a page cache of 65 MB), or `trace:FILE` (what `lamina trace` recorded,
    /// SPC, MSR Cambridge, blktrace, fio's iolog). Parameters follow after commas:
    /// `web:cached,clients=20,requests=9000` (also cache, read, files, large, metadata, sleep), `trace:FILE,speed=2`
    /// (also depth for a closed loop, wrap, event, format, requests). It ends by itself.
    #[arg(long, value_name = "WORKLOAD", conflicts_with_all = [
        "rw", "reads", "block_size", "depth", "random", "sequential", "time", "ramp", "flush_every",
    ])]
    pub workload: Option<String>,
    /// Random places (the default).
    #[arg(long, conflicts_with = "sequential")]
    pub random: bool,
    /// One place after the other.
    #[arg(long)]
    pub sequential: bool,
    /// How long.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub time: Interval,
    /// Load before counting begins.
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    pub ramp: Interval,
    /// Flush after so many writes, each worker for itself; the flush counts as part of the last of them [default:
    /// never].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub flush_every: Option<u32>,
    /// Part of the device to use, from its start [default: all].
    #[arg(long, value_name = "SIZE", alias = "span")]
    pub size: Option<Bytes>,
    /// Where random places begin: the same seed gives the same places.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Measure in virtual time: the sinks of the hierarchy become simulated disks, which are blank and as large as they
    /// are, and take the time of models. Nothing that is stored is touched; hours take seconds.
    #[arg(long = "virtual", requires = "model", conflicts_with_all = ["server_pid", "spin", "connections"])]
    pub virtual_time: bool,
    /// In virtual time: the drives, by the name of a model that comes with Lamina (`cheetah-15k4`) or a model file, for
    /// all sinks, or with `DEVICE=` for one.
    #[arg(long, value_name = "[DEVICE=]MODEL", requires = "virtual_time")]
    pub model: Vec<String>,
    /// Also report the CPU time of this process (the server's) per request.
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// How long a busy core looks for more work before it sleeps.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub spin: Interval,
    /// Overwrite data without asking.
    #[arg(long)]
    pub force: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `trace`.
#[derive(Args, Debug)]
pub struct Trace {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// The name of a device or an export in its hierarchy file.
    #[arg(add = ArgValueCandidates::new(complete::devices))]
    pub device: String,
    /// How long [default: until Ctrl-C].
    #[arg(long = "for", value_name = "TIME")]
    pub time: Option<Interval>,
    /// The file [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Arguments of `kinds`.
#[derive(Args, Debug)]
pub struct Kinds {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub struct Completions {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
pub struct Man {
    /// The folder; made if there is none.
    pub folder: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_and_times_are_read_as_in_files() {
        let cli =
            Cli::try_parse_from(["lamina", "bench", "x.toml", "--block-size", "128KiB", "--time", "2s"]);
        let Command::Bench(bench) = cli.expect("a valid command line").command else { panic!("bench") };
        assert_eq!(bench.block_size, Bytes(128 << 10));
        assert_eq!(bench.time.0.as_secs(), 2);
        let wrong = Cli::try_parse_from(["lamina", "serve", "x.toml", "--drain", "5"]).unwrap_err();
        assert!(wrong.to_string().contains("is no time"), "{wrong}");
    }
}

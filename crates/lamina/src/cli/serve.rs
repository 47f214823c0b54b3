//! Arguments of `lamina serve`, and of what serves a hierarchy besides.

use clap::Args;
use lamina_block::{Address, Bytes, Interval};
use std::path::PathBuf;

/// Arguments of `serve`.
#[derive(Args, Debug)]
pub struct Serve {
    /// Hierarchy files. Device and export names must differ between them.
    #[arg(required_unless_present = "from_members", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Serve the hierarchy that these devices, images, or folders of them carry, without a file: in its present state,
    /// whatever `lamina apply` changed. Further members are searched for beside the named ones, and at their paths of
    /// the last change. Relative paths begin in the folder of the hierarchy's file.
    #[arg(long, value_name = "DEVICE", num_args = 1..)]
    pub from_members: Vec<PathBuf>,
    /// How to serve.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// How a daemon runs.
#[derive(Args, Debug)]
pub struct ServeOptions {
    /// Control socket [default: the first file's name with `.ctl.sock` appended].
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Cores to spread hierarchies over [default: one for each connected hierarchy, at most one per processor].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub cores: Option<u16>,
    /// Serve also without members that are missing or damaged, if every exported device has all of its bytes without
    /// them. The other members record these as evicted, so that the next start does not need this option. Writes that
    /// only the evicted members have, from a time when the others were away, are given up.
    #[arg(long)]
    pub degraded: bool,
    /// Trust the paths and addresses that members carry: open the files, servers and listeners that they name besides
    /// the members. Without this option a person is asked, and a service refused. A hierarchy file is always trusted.
    #[arg(long)]
    pub trust: bool,
    /// How long a core looks for more work before it sleeps, while its waits are hardly ever longer. 0s: not at all.
    #[arg(long, value_name = "TIME", default_value = "40us")]
    pub spin: Interval,
    /// Memory for the requests of all clients and guests together, an equal part on each core. Layers that copy data
    /// (crypt, parity) need as much again.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub memory: Bytes,
    /// So many requests of each export a second are looked at, where their time goes, for `lamina why`. 0: none.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(..=1000))]
    pub samples: u32,
    /// Keep events in this file, behind those that are there: one line of JSON each. It is written anew when it has
    /// 4,000 lines.
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Start this program for each event, one after the other, with LAMINA_EVENT_DEVICE, LAMINA_EVENT_MESSAGE,
    /// LAMINA_EVENT_SEVERITY (error, warning, info), LAMINA_EVENT_TIME and LAMINA_EVENT_NUMBER in its environment. What
    /// happens again is not told again. A program that takes longer than a minute is ended.
    #[arg(long, value_name = "PROGRAM", env = "LAMINA_ON_EVENT")]
    pub on_event: Option<PathBuf>,
    /// Start this program, with LAMINA_FENCE_HOST in its environment, when that host is silent and may still write to a
    /// store whose volume this host takes (kind `reservation`). With exit status 0 it says that nothing of that host
    /// reaches a store any more: the host is off, or cut off. A program that takes longer than two minutes is ended.
    /// After that, or another status, the program is started again.
    #[arg(long, value_name = "PROGRAM", env = "LAMINA_FENCE")]
    pub fence: Option<PathBuf>,
    /// Serve a web page at this address, `tcp:HOST:PORT`: the volumes with their rates and latencies, charts of the
    /// last hour, caches, background work, alerts, events. On loopback the page needs no token; without one it only
    /// shows. Any other address needs --web-token, --web-certificate and --web-key.
    #[arg(long, value_name = "ADDRESS", env = "LAMINA_WEB")]
    pub web: Option<Address>,
    /// The web page is for those who know the token in this file, one line of at least 16 characters. They may steer
    /// background work, too.
    #[arg(long, value_name = "FILE", env = "LAMINA_WEB_TOKEN", requires = "web")]
    pub web_token: Option<PathBuf>,
    /// Serve the web page over TLS, with the certificate chain in this PEM file.
    #[arg(long, value_name = "FILE", env = "LAMINA_WEB_CERTIFICATE", requires = "web", requires = "web_key")]
    pub web_certificate: Option<PathBuf>,
    /// The private key of that certificate, a PEM file.
    #[arg(long, value_name = "FILE", env = "LAMINA_WEB_KEY", requires = "web", requires = "web_certificate")]
    pub web_key: Option<PathBuf>,
    /// How long draining may take before the program gives up, with exit code 1.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub drain: Interval,
}

//! The arguments of `lamina predict`.

use clap::Args;
use std::path::PathBuf;

/// Arguments of `predict`.
#[derive(Args, Debug)]
pub struct Predict {
    /// The hierarchy file, whose sinks become simulated drives [default: a plain disk under `schedule`].
    #[arg(value_name = "FILE", required_unless_present = "model")]
    pub file: Option<PathBuf>,
    /// The device or export of the hierarchy file that is worked on [default: its only export].
    #[arg(long, value_name = "NAME", requires = "file")]
    pub device: Option<String>,
    /// The drives: a name (`cheetah-15k4`) or a model file, for all sinks, or with `DEVICE=` for one sink. Given
    /// several times for all sinks, each model gets a table of its own.
    #[arg(long, value_name = "[DEVICE=]MODEL")]
    pub model: Vec<String>,
    /// What if: the same again with this drive in the place of one, and the difference. May be given several times: all
    /// of these drives are exchanged.
    #[arg(long, value_name = "DEVICE=MODEL", requires = "file")]
    pub replace: Vec<String>,
    /// What the clients do: `web:direct` or `web:cached` (50 clients of a web server, with direct reads or through a
    /// page cache of 65 MB), `trace:FILE`, or `random:N` (N reads of 4 KiB a second, at random places and moments).
    #[arg(long, value_name = "WORKLOAD", default_value = "web:direct")]
    pub workload: String,
    /// The policies to compare. Parameters follow after colons: `cfq:cfq.slice-idle=4ms`.
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',', default_value = "noop,deadline,cfq,cats")]
    pub policy: Vec<String>,
    /// Requests below the scheduler at a time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    pub depth: u32,
    /// Runs of each policy, each with another seed, the same for all policies. One seed ranks nothing.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Requests of each run that are counted [default: 50000; of a trace, all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub requests: Option<u64>,
    /// Requests of each run before counting begins [default: 5000; of a trace, none].
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// Processors to use [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Also say how fast the runs were.
    #[arg(long)]
    pub verbose: bool,
    /// Write pictures (SVG) into this folder, which is made if there is none: responses of the policies, and where the
    /// drives were when.
    #[arg(long, value_name = "FOLDER")]
    pub plots: Option<PathBuf>,
}

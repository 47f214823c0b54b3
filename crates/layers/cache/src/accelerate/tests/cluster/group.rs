//! The hosts of a test, and its end: nothing is wrong any more, and everything is there.

use super::*;

/// Everything goes on so long after nothing is wrong any more, at most.
const HEALS: Duration = Duration::from_secs(120);

/// Hosts of one volume.
pub struct Group {
    pub world: Rc<SimEnv>,
    pub seen: Rc<Invariants>,
    pub peers: usize,
    pub hosts: Vec<Serves>,
    /// The rates of their clocks, in thousandths.
    rates: Vec<u32>,
}

impl Group {
    /// Hosts that know a volume, of which the first one has filled it. Clocks are never quite alike.
    pub async fn begin(world: &Rc<SimEnv>, hosts: usize, peers: usize) -> std::result::Result<Group, String> {
        create(world, &HOSTS[..hosts]).await?;
        let rates = (0..hosts).map(|_| 920 + (world.random() % 160) as u32).collect();
        let seen = Invariants::watch(world);
        let mut group = Group { world: Rc::clone(world), seen, peers, hosts: Vec::new(), rates };
        for host in 0..hosts {
            let serves = group.open(host).await?;
            group.hosts.push(serves);
        }
        let filled = group.seen.history.write(world, &group.hosts[0].vm, 0..BLOCKS, 1, true).await;
        filled.map_err(told("filled"))?;
        Ok(group)
    }

    async fn open(&self, host: usize) -> std::result::Result<Serves, String> {
        let opened = Serves::open(&self.world, HOSTS[host], self.peers, Begin::Open).await;
        let serves = opened.map_err(told("I10: a host does not begin"))?;
        serves.env.set_clock_rate(self.rates[host]);
        self.seen.knows(&serves);
        Ok(serves)
    }

    /// A number below `below`.
    pub fn draw(&self, below: usize) -> usize {
        (self.world.random() % below as u64) as usize
    }

    /// Waits for a part of `most`.
    pub async fn wait(&self, most: Duration) {
        self.world.sleep(Duration::from_nanos(self.world.random() % most.as_nanos() as u64)).await;
    }

    /// A process of a host begins anew; the one before has died, if it had not.
    pub async fn start(&mut self, host: usize) -> Checked {
        if !self.hosts[host].env.is_dead() {
            self.hosts[host].kill();
        }
        self.hosts[host] = self.open(host).await?;
        Ok(())
    }

    /// A host stops where it is, or the whole machine does, with its clock.
    pub fn stop(&self, host: usize, with_clock: bool) {
        match with_clock {
            true => {
                self.seen.stands_still(HOSTS[host]);
                self.hosts[host].env.stop_with_clock();
            }
            false => self.hosts[host].env.stop(),
        }
    }

    /// A host that was stopped goes on, with its clock.
    pub fn go_on(&self, host: usize) {
        self.seen.goes_on(HOSTS[host]);
        self.hosts[host].env.go_on();
        self.hosts[host].env.set_clock_rate(self.rates[host]);
    }

    /// Requests of all workers on a host, to their end.
    pub async fn work(&self, host: usize, requests: u64) -> Checked {
        for guest in self.guests(host, requests) {
            guest.has_done(&self.world, requests).await?;
            guest.ended(&self.world).await?;
        }
        Ok(())
    }

    /// Workers on a host.
    pub fn guests(&self, host: usize, requests: u64) -> Vec<Rc<Guest>> {
        (0..WORKERS).map(|worker| guest(&self.seen, &self.hosts[host], worker, requests)).collect()
    }

    /// Everything is read on a host, which takes the volume if need be.
    pub async fn read(&self, host: usize) -> Checked {
        self.seen.read(&self.hosts[host].vm, 0..BLOCKS).await
    }

    /// A host, from this one on, that has the volume after some time, with everything.
    async fn is_read(&self, first: usize) -> std::result::Result<usize, String> {
        let began = self.world.now();
        for host in (0..self.hosts.len()).cycle().skip(first) {
            match self.read(host).await {
                Ok(()) => return Ok(host),
                Err(e) if is_wrong(&e) => return Err(format!("I8: {e}")),
                Err(e) if self.world.now().since(began) > HEALS => return Err(format!("I10: {e}")),
                Err(_) => self.world.sleep(Duration::from_secs(1)).await,
            }
        }
        Err("there is no host".into())
    }

    /// Nothing is wrong any more: each host has a new process, the volume is there again in bounded time, with
    /// everything, and goes on; and in the end the store alone has all of it.
    pub async fn ends(&mut self) -> Checked {
        for host in 0..self.hosts.len() {
            self.start(host).await?;
        }
        let here = self.is_read(0).await?;
        let serves = &self.hosts[here];
        if serves.vm.info()["policy"] == json!("uncached") {
            // It has failed at a time when the store had everything, and is used again when somebody says so.
            let policy = json!({ "policy": "write-back" });
            serves.command("set-policy", policy).await.map_err(told("I10: the flash is not used again"))?;
        }
        serves.paired().await?;
        let last = guest(&self.seen, serves, 0, 30);
        last.has_done(&self.world, 30).await?;
        self.seen.ends_now(self.peers)?;
        serves.close().await.map_err(told("closed"))?;
        let disk: Rc<dyn Env> = Rc::clone(&self.world) as _;
        let store = Node::new("store", "simulated", disk, self.world.disk("store").expect("a disk") as _);
        let stored = self.seen.history.read(&self.world, &store, 0..BLOCKS, None).await;
        self.seen.judge("I8: the store alone", stored)?;
        let next = (here + 1 + self.draw(self.hosts.len() - 1)) % self.hosts.len();
        self.is_read(next).await.map_err(|e| format!("at last: {e}"))?;
        self.seen.check()
    }
}

//! Which hosts become peers (SYSTEMS C8): first the rule about fault domains, then a spread of volumes over hosts, by
//! the space that their flashes have.
//!
//! A *fault domain* is what fails together: a rack, a room, a power feed. A host says with its beats in which it is.

use lamina_block::Address;

/// The fault domains in which peers are to be, seen from the host that has the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domains {
    /// Anywhere.
    Any,
    /// So many in its own domain, and so many in others.
    Counts {
        /// In its own.
        same: usize,
        /// In others: any others, together.
        other: usize,
    },
}

/// A host that offers itself as a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its name.
    pub host: String,
    /// Where it takes writes.
    pub address: Address,
    /// Its fault domain, if it says one.
    pub domain: Option<String>,
    /// Bytes of its flash that hold nothing which a store lacks, if it says so.
    pub room: Option<u64>,
}

/// Peers that are still to be found.
#[derive(Clone, Debug)]
pub struct Choice {
    own: Option<String>,
    any: usize,
    same: usize,
    other: usize,
}

impl Choice {
    /// So many peers of a host in the domain `own`.
    pub fn new(peers: usize, domains: Domains, own: Option<String>) -> Choice {
        match domains {
            Domains::Any => Choice { own, any: peers, same: 0, other: 0 },
            Domains::Counts { same, other } => Choice { own, any: 0, same, other },
        }
    }

    /// The offers in the order in which they are asked: another one for each volume, so that a host's volumes do not
    /// all have the same peers, and the same one on every host (rendezvous hashing). A flash with twice as much room is
    /// the first one of twice as many volumes (Schindelhauer, Schomaker, *Weighted Distributed Hash Tables*, SPAA '05).
    pub fn order(volume: &str, mut offers: Vec<Offer>) -> Vec<Offer> {
        // A checksum alone changes too little with the name of the host. The multiplier is the golden ratio of 32 bits
        // (Knuth, The Art of Computer Programming, volume 3, section 6.4).
        let mixed = |sum: u32| (sum ^ (sum >> 15)).wrapping_mul(0x9E37_79B9);
        let rank = |offer: &Offer| {
            let [host, volume] = [&*offer.host, volume].map(|name| crc32c::crc32c(name.as_bytes()));
            mixed(mixed(host) ^ volume)
        };
        let said: Vec<u64> = offers.iter().filter_map(|offer| offer.room).collect();
        // One that says nothing, as its Lamina is older, is as good as the mean of the others.
        let mean = said.iter().sum::<u64>().checked_div(said.len() as u64).unwrap_or(1);
        let far = |offer: &Offer| {
            let at = (f64::from(rank(offer)) + 0.5) / 2f64.powi(32);
            -(1.0 - at).ln() / offer.room.unwrap_or(mean) as f64
        };
        offers.sort_by(|a, b| far(a).total_cmp(&far(b)).then_with(|| a.host.cmp(&b.host)));
        offers
    }

    /// What is to be counted down for an offer; `None` if the rule has no place for it. A host that says no domain is
    /// in no known one: neither in the own one nor in another.
    fn place(&mut self, offer: &Offer) -> Option<&mut usize> {
        let place = match (&self.own, &offer.domain) {
            _ if self.any > 0 => &mut self.any,
            (Some(own), Some(domain)) if own == domain => &mut self.same,
            (Some(_), Some(_)) => &mut self.other,
            (_, _) => return None,
        };
        (*place > 0).then_some(place)
    }

    /// True if a host would be one of those to be found.
    pub fn wants(&self, offer: &Offer) -> bool {
        self.clone().place(offer).is_some()
    }

    /// A host has become a peer.
    pub fn found(&mut self, offer: &Offer) {
        if let Some(place) = self.place(offer) {
            *place -= 1;
        }
    }

    /// True if these offers are enough.
    pub fn is_met_by(&self, offers: &[Offer]) -> bool {
        let mut left = self.clone();
        offers.iter().for_each(|offer| left.found(offer));
        left.missing() == 0
    }

    /// So many are still to be found.
    pub fn missing(&self) -> usize {
        self.any + self.same + self.other
    }
}

impl std::fmt::Display for Choice {
    /// What is missing, for people.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let own = self.own.as_deref().unwrap_or_default();
        match (self.any, self.same, self.other) {
            (0, same, 0) => write!(f, "{same} in the fault domain {own:?}"),
            (0, 0, other) => write!(f, "{other} in other fault domains than {own:?}"),
            (0, same, other) => write!(f, "{same} in the fault domain {own:?} and {other} in others"),
            (any, _, _) => write!(f, "{any}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(host: &str, domain: Option<&str>) -> Offer {
        let address = Address::Tcp(format!("{host}:1"));
        Offer { host: host.into(), address, domain: domain.map(String::from), room: None }
    }

    #[test]
    fn rules_choose_by_domain() {
        let offers =
            [("a", Some("r1")), ("b", Some("r2")), ("c", Some("r1")), ("d", None), ("e", Some("r3"))]
                .map(|(host, domain)| offer(host, domain));
        let counts = |same, other| Domains::Counts { same, other };
        for (peers, domains, own, chosen, missing) in [
            (2, Domains::Any, Some("r1"), "ab", 0),
            (2, Domains::Any, None, "ab", 0),
            (1, counts(0, 1), Some("r1"), "b", 0),
            (2, counts(0, 2), Some("r1"), "be", 0),
            (3, counts(0, 3), Some("r1"), "be", 1),
            (2, counts(2, 0), Some("r1"), "ac", 0),
            (2, counts(1, 1), Some("r1"), "ab", 0),
            (2, counts(1, 1), Some("r3"), "ae", 0),
            (1, counts(1, 0), Some("r9"), "", 1),
            (1, counts(0, 1), None, "", 1),
        ] {
            let mut choice = Choice::new(peers, domains, own.map(String::from));
            assert_eq!(choice.is_met_by(&offers), missing == 0, "{domains:?} {own:?}");
            let mut found = String::new();
            for offer in &offers {
                if choice.wants(offer) {
                    choice.found(offer);
                    found += &offer.host;
                }
            }
            assert_eq!((&*found, choice.missing()), (chosen, missing), "{domains:?} {own:?}");
        }
    }

    #[test]
    fn volumes_are_spread_over_hosts() {
        let offers: Vec<Offer> = ["a", "b", "c", "d"].map(|host| offer(host, None)).into();
        let mut first = std::collections::BTreeMap::new();
        for n in 0..400 {
            let volume = format!("vm{n}");
            let order = Choice::order(&volume, offers.clone());
            let mut turned = offers.clone();
            turned.rotate_left(n % 4);
            assert_eq!(order, Choice::order(&volume, turned), "the order of the offers says nothing");
            *first.entry(order[0].host.clone()).or_insert(0) += 1;
        }
        assert!(first.len() == 4 && first.values().all(|count| (60..140).contains(count)), "{first:?}");
    }

    #[test]
    fn a_flash_with_more_room_has_more_volumes() {
        let offers: Vec<Offer> = [("a", Some(100)), ("b", Some(300)), ("c", None), ("d", Some(0))]
            .map(|(host, room)| Offer { room, ..offer(host, None) })
            .into();
        let mut first = std::collections::BTreeMap::new();
        for volume in 0..600 {
            let order = Choice::order(&format!("vm{volume}"), offers.clone());
            assert_eq!(order[3].host, "d", "it is full");
            *first.entry(order[0].host.clone()).or_insert(0) += 1;
        }
        // 100, 300 and the mean, 133, of 533 parts.
        let part = |host: &str, of: u32| first[host] * 533 / 600 * 10 / of;
        let parts = [part("a", 100), part("b", 300), part("c", 133)];
        assert!(parts.iter().all(|part| (7..=13).contains(part)), "{first:?}");
    }

    #[test]
    fn what_is_missing_is_said() {
        let said = |same, other| {
            Choice::new(same + other, Domains::Counts { same, other }, Some("r1".into())).to_string()
        };
        assert_eq!(said(0, 2), "2 in other fault domains than \"r1\"");
        assert_eq!(said(1, 0), "1 in the fault domain \"r1\"");
        assert_eq!(said(1, 2), "1 in the fault domain \"r1\" and 2 in others");
        assert_eq!(Choice::new(2, Domains::Any, None).to_string(), "2");
    }
}

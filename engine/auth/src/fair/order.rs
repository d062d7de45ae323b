//! The order in which flows with waiting items are served, kept up to date with every change.
//!
//! Flows are the leaves of two trees, for connections and for datagrams: below the root are the
//! widest networks, then the networks in them, then the sources. Each node is in an ordered set of
//! its parent, by the work done for it. So the next flow is found by descending from the root, and
//! a change of a flow or of an account concerns the nodes above it only: a pop compares a few dozen
//! claims among thousands of sources.

use super::SourceFlow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

/// The levels of a tree: its root, which is the kind of transport, and three networks.
pub(super) const LEVELS: usize = 4;

/// What decides which child of a node comes first: the least work, level by level, and of equals
/// the item that was added first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowClaim {
    /// Scaled work, from the level of the node down to the first source below it; 0 above.
    spent: [f64; LEVELS],
    /// The number of the first item of this source.
    number: u64,
}

impl Ord for FlowClaim {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        COMPARISONS.set(COMPARISONS.get() + 1);
        let pairs = self.spent.iter().zip(&other.spent);
        let order = pairs.map(|(one, other)| one.total_cmp(other)).find(|order| order.is_ne());
        order.unwrap_or_else(|| self.number.cmp(&other.number))
    }
}

impl PartialOrd for FlowClaim {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for FlowClaim {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for FlowClaim {}

#[cfg(test)]
thread_local! {
    /// Comparisons of claims by this thread.
    pub(super) static COMPARISONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A node: the transport, its level, and its network. Roots have no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct FlowNode {
    is_connected: bool,
    level: usize,
    network: IpAddr,
}

/// The path of `flow` from its root to its source.
fn path(flow: &SourceFlow) -> [FlowNode; LEVELS] {
    let [wide, middle, source] = flow.networks;
    let networks = [Ipv4Addr::UNSPECIFIED.into(), wide, middle, source];
    std::array::from_fn(|level| FlowNode { is_connected: flow.is_connected, level, network: networks[level] })
}

/// The flows with waiting items, by their claims.
#[derive(Debug, Default)]
pub(super) struct FlowOrder {
    /// The children of each node, in their order.
    children: HashMap<FlowNode, BTreeSet<(FlowClaim, FlowNode)>>,
    /// The roots.
    roots: BTreeSet<(FlowClaim, FlowNode)>,
    /// The claim of each node that is in a set.
    claims: HashMap<FlowNode, FlowClaim>,
    /// The flow of each source in the trees.
    flows: HashMap<FlowNode, SourceFlow>,
}

impl FlowOrder {
    /// The flow to serve next.
    pub(super) fn first(&self) -> Option<SourceFlow> {
        let (_, mut node) = *self.roots.first()?;
        for _ in 1..LEVELS {
            (_, node) = *self.children.get(&node)?.first()?;
        }
        self.flows.get(&node).copied()
    }

    /// Puts `flow` in its place. `first_number` is the number of its first item, if it has one, and
    /// `spent` the scaled work of each level, the root first.
    pub(super) fn update(&mut self, flow: &SourceFlow, first_number: Option<u64>, spent: [f64; LEVELS]) {
        let path = path(flow);
        let leaf = path[LEVELS - 1];
        match first_number {
            Some(_) => self.flows.insert(leaf, *flow),
            None => self.flows.remove(&leaf),
        };
        let mut claim = first_number.map(|number| FlowClaim { number, ..FlowClaim::default() });
        for level in (0..LEVELS).rev() {
            let node = path[level];
            if level < LEVELS - 1 {
                claim = self.children.get(&node).and_then(BTreeSet::first).map(|(claim, _)| *claim);
            }
            claim.iter_mut().for_each(|claim| claim.spent[level] = spent[level]);
            self.set_claim(node, level.checked_sub(1).map(|above| path[above]), claim);
        }
    }

    /// Changes the claim of `node` in the set of its parent, or removes it.
    fn set_claim(&mut self, node: FlowNode, parent: Option<FlowNode>, claim: Option<FlowClaim>) {
        let old = match claim {
            Some(claim) => self.claims.insert(node, claim),
            None => self.claims.remove(&node),
        };
        if old.is_none() && claim.is_none() {
            return;
        }
        let siblings = match parent {
            Some(parent) => self.children.entry(parent).or_default(),
            None => &mut self.roots,
        };
        old.map(|old| siblings.remove(&(old, node)));
        claim.map(|claim| siblings.insert((claim, node)));
        if siblings.is_empty() {
            parent.map(|parent| self.children.remove(&parent));
        }
    }

    /// Removes all flows.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

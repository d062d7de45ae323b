//! The phases of the life of a gateway, which all its tasks can wait for.

use std::sync::atomic::{AtomicU8, Ordering};
use tokio::sync::watch;

/// A phase. A gateway goes through them in this order, and may skip some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GatewayPhase {
    /// Connections wait in the kernel.
    Starting,
    /// Connections are accepted.
    Serving,
    /// Another process accepts connections. Those of this process end with their next answer.
    HandedOver,
    /// No connections are accepted. Those that are open end with the answers to requests under way.
    Stopping,
}

/// Notifies tasks which phase the gateway has reached.
pub type PhaseReceiver = watch::Receiver<GatewayPhase>;

/// The phase of a gateway.
#[derive(Debug)]
pub struct CurrentPhase {
    phase: watch::Sender<GatewayPhase>,
    /// The same, asked for each request.
    number: AtomicU8,
}

impl Default for CurrentPhase {
    fn default() -> Self {
        let first = GatewayPhase::Starting;
        Self { phase: watch::Sender::new(first), number: AtomicU8::new(first as u8) }
    }
}

impl CurrentPhase {
    /// Begins a phase, unless it is over.
    pub fn advance(&self, next: GatewayPhase) {
        // First, because the tasks that are woken look at it.
        self.number.fetch_max(next as u8, Ordering::AcqRel);
        self.phase.send_if_modified(|phase| {
            let is_later = *phase < next;
            *phase = next.max(*phase);
            is_later
        });
    }

    /// Whether the gateway has reached `phase`.
    #[must_use]
    pub fn has_reached(&self, phase: GatewayPhase) -> bool {
        self.number.load(Ordering::Acquire) >= phase as u8
    }

    /// A receiver of the phases.
    #[must_use]
    pub fn subscribe(&self) -> PhaseReceiver {
        self.phase.subscribe()
    }
}

/// Waits until the gateway has reached `phase`.
pub async fn reached(mut receiver: PhaseReceiver, phase: GatewayPhase) {
    // An error means that the gateway is gone.
    drop(receiver.wait_for(|current| *current >= phase).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_begin_in_order_and_do_not_come_back() {
        let current = CurrentPhase::default();
        let receiver = current.subscribe();
        let has = |phase| current.has_reached(phase);
        assert!(has(GatewayPhase::Starting) && !has(GatewayPhase::Serving));
        current.advance(GatewayPhase::HandedOver);
        assert!(has(GatewayPhase::Serving) && has(GatewayPhase::HandedOver) && !has(GatewayPhase::Stopping));
        current.advance(GatewayPhase::Serving);
        assert_eq!(*receiver.borrow(), GatewayPhase::HandedOver);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            reached(receiver.clone(), GatewayPhase::Serving).await;
            tokio::join!(reached(receiver.clone(), GatewayPhase::Stopping), async {
                current.advance(GatewayPhase::Stopping);
            });
        });
        drop(current);
        runtime.block_on(reached(receiver, GatewayPhase::Stopping));
    }
}

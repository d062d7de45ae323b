//! Bodies of requests, collected within bounds.

use crate::connections::request_body::RequestBody;
use crate::state::GatewayState;
use handle_daemon::permits::{PermitLimits, SourcePermit};
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::{Body, Bytes};
use std::net::IpAddr;
use zeroize::Zeroizing;

/// Reads the body of a request of a client at `source`: at most `len_max` bytes and what
/// `limits.body_bytes` allows, within the bounds of time and of all bodies together. Its bytes
/// count as long as the reservation is kept, which is until they are no longer used for the answer.
///
/// # Errors
/// The status for a body that is too long, too slow or broken, or for which there is no capacity.
pub(crate) async fn read_body(
    state: &GatewayState,
    source: IpAddr,
    body: RequestBody,
    len_max: usize,
) -> Result<(Zeroizing<Vec<u8>>, SourcePermit), StatusCode> {
    let settings = state.settings.current_shared();
    let limits = &settings.limits;
    let len_max = len_max.min(limits.body_bytes);
    let timeout = limits.transfer_time();
    let collected = collect(state.bodies.reservation(source), body, len_max, limits.bodies());
    let read = tokio::time::timeout(timeout, collected).await;
    let read = read.unwrap_or(Err(StatusCode::REQUEST_TIMEOUT));
    if read.is_err() {
        state.counters.bodies_refused.add();
    }
    read
}

/// Reads a body: at most `len_max` bytes, for which `reservation` takes as much as `limits` allow.
/// They count as long as the reservation is kept. They may be a secret, so no other copy stays in
/// memory.
///
/// # Errors
/// The status for a body that is too long or broken, or for which there is no capacity.
pub(crate) async fn collect<B: Body<Data = Bytes> + Unpin>(
    mut reservation: SourcePermit,
    mut body: B,
    len_max: usize,
    limits: PermitLimits,
) -> Result<(Zeroizing<Vec<u8>>, SourcePermit), StatusCode> {
    let announced = body.size_hint().lower();
    if announced > len_max as u64 {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    let first = usize::try_from(announced).unwrap_or(len_max).min(FIRST_LEN);
    let mut bytes = Zeroizing::new(Vec::with_capacity(first));
    while let Some(frame) = body.frame().await {
        // Trailers are ignored.
        let Ok(data) = frame.map_err(|_| StatusCode::BAD_REQUEST)?.into_data() else { continue };
        if bytes.len() + data.len() > len_max {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        if reservation.add(data.len(), limits).is_err() {
            return Err(StatusCode::SERVICE_UNAVAILABLE);
        }
        append(&mut bytes, &data);
    }
    Ok((bytes, reservation))
}

/// Bytes of a body for which there is memory before they have arrived.
const FIRST_LEN: usize = 64 << 10;

/// Appends to a secret. A vector that grows by itself leaves a copy behind, which is not zeroed.
pub(crate) fn append(bytes: &mut Zeroizing<Vec<u8>>, more: &[u8]) {
    let len = bytes.len() + more.len();
    if len > bytes.capacity() {
        let mut longer = Zeroizing::new(Vec::with_capacity(len.max(2 * bytes.capacity())));
        longer.extend_from_slice(bytes);
        *bytes = longer;
    }
    bytes.extend_from_slice(more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::ResponseBody;
    use handle_daemon::permits::SourcePermits;

    #[test]
    fn a_body_grows_into_memory_that_is_zeroed_and_counts_for_its_source() {
        let text = "x".repeat(300_000);
        let all = SourcePermits::default();
        let limits = PermitLimits { all: 1 << 20, per_holder: text.len() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let of_text = || ResponseBody::from(Bytes::from(text.clone()));
            let reservation = || all.reservation([192, 0, 2, 1].into());
            let (bytes, kept) = collect(reservation(), of_text(), text.len(), limits).await.unwrap();
            assert!(*bytes == text.as_bytes());
            let refused = collect(reservation(), of_text(), text.len(), limits).await;
            assert_eq!(refused.err(), Some(StatusCode::SERVICE_UNAVAILABLE));
            drop(kept);
            let long = collect(reservation(), of_text(), text.len() - 1, limits).await;
            assert_eq!(long.err(), Some(StatusCode::PAYLOAD_TOO_LARGE));
            assert!(collect(reservation(), of_text(), text.len(), limits).await.is_ok());
        });
        let mut bytes = Zeroizing::new(Vec::new());
        for part in text.as_bytes().chunks(1000) {
            append(&mut bytes, part);
        }
        assert!(*bytes == text.as_bytes());
    }
}

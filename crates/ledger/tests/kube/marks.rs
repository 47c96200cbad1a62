//! What a plain pool takes while slices of its range are given from, also by a commit that was planned before they were.

use berth_core::slice::closed::Closed;
use berth_core::slice::elastic::Mark;
use berth_core::slice::ways::{Bar, PlainMarks};
use berth_ledger::kube::UNCHECKED;

use super::*;

fn unchecked(n: u32, owner: &str) -> Change {
    Change::Claim {
        address: mk_address(n),
        record: mk_record(owner).with(UNCHECKED, "true"),
    }
}

fn is_moved(written: Result<Version, LedgerError>) -> bool {
    match written {
        Ok(_) => false,
        Err(LedgerError::Moved { .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mark_bars_whom_it_says() {
    let bed = Bed::new("marks").await;
    let (ledger, pool) = (&bed.ledger, mk_pool());
    write(ledger, &pool, &[claim(1, "first")]).await.unwrap();
    let close = async |bar, from: Option<&Closed>, to: Option<&Closed>| {
        assert!(ledger.set_closed(&pool, bar, from, to).await.unwrap());
    };
    let closed = Closed::by(None, "blue");

    let before = ledger.load(&pool).await.unwrap().version;
    close(Bar::Assigned, None, closed.as_ref()).await;
    let late = ledger.commit(&pool, &before, &[unchecked(2, "late")]).await;
    assert!(is_moved(late), "planned before");
    let with = ledger.commit(&pool, &before, &[claim(2, "reserved")]).await;
    assert!(!is_moved(with), "its reservation guards it");

    let before = ledger.load(&pool).await.unwrap().version;
    close(Bar::Unreserved, None, closed.as_ref()).await;
    for change in [claim(3, "late"), unchecked(3, "late")] {
        let late = ledger.commit(&pool, &before, std::slice::from_ref(&change));
        assert!(is_moved(late.await), "planned before");
        assert!(is_moved(write(ledger, &pool, &[change]).await));
    }
    let gone = write(ledger, &pool, &[release(1, "first")]).await;
    assert!(!is_moved(gone), "what is held may always go");
    let told = PlainMarks {
        sliced: None,
        assigned: true,
        unreserved: true,
    };
    assert_eq!(ledger.marks(&pool).await.unwrap(), told);

    close(Bar::Unreserved, closed.as_ref(), None).await;
    assert!(is_moved(write(ledger, &pool, &[unchecked(3, "c")]).await));
    assert!(!is_moved(write(ledger, &pool, &[claim(3, "c")]).await));
    let sliced = Some(Mark::sliced(24).for_network(false));
    assert!(ledger.set_mark(&pool, None, sliced).await.unwrap());
    assert!(is_moved(write(ledger, &pool, &[claim(4, "d")]).await));
    assert_eq!(ledger.mark(&pool).await.unwrap(), sliced);
    let other = Some(Mark::sliced(24));
    assert!(!ledger.set_mark(&pool, other, None).await.unwrap());
    assert!(ledger.set_mark(&pool, sliced, None).await.unwrap());
}

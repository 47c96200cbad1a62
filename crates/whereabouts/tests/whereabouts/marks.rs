//! What a plain pool takes while slices of its range are given from, also by a commit that was planned before they were.

use berth_core::slice::elastic::Mark;
use berth_core::slice::range_mode::{Closed, Exclusion, PlainMarks};
use berth_whereabouts::UNCHECKED;

use super::*;

fn unchecked(n: u32, owner: &str) -> Change {
    Change::Allocate {
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
    close(Exclusion::Assigned, None, closed.as_ref()).await;
    let late = ledger
        .commit(&pool, &before, &[unchecked(2, "late")], None)
        .await;
    assert!(is_moved(late), "planned before");
    let with = ledger
        .commit(&pool, &before, &[claim(2, "reserved")], None)
        .await;
    assert!(!is_moved(with), "its reservation guards it");

    let before = ledger.load(&pool).await.unwrap().version;
    close(Exclusion::Unreserved, None, closed.as_ref()).await;
    for change in [claim(3, "late"), unchecked(3, "late")] {
        let late = ledger.commit(&pool, &before, std::slice::from_ref(&change), None);
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

    close(Exclusion::Unreserved, closed.as_ref(), None).await;
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

/// A newer version's fields do not keep this one from changing a mark, and stay (I7).
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_unknown_fields_of_marks_are_kept() {
    let bed = Bed::new("newer-marks").await;
    let (ledger, pool) = (&bed.ledger, mk_pool());
    let sliced = Mark::sliced(24);
    assert!(ledger.set_mark(&pool, None, Some(sliced)).await.unwrap());
    let closed = Closed::by(None, "blue").unwrap();
    let bar = Exclusion::Assigned;
    assert!(
        ledger
            .set_closed(&pool, bar, None, Some(&closed))
            .await
            .unwrap()
    );
    let client = cluster().await.client().await.unwrap();
    let pools: Api<IPPool> = Api::namespaced(client, &bed.namespace);
    let annotations = async || {
        let now = pools.get(&pool.name).await.unwrap();
        now.metadata.annotations.unwrap()
    };
    let mut planted = serde_json::Map::new();
    for (key, text) in annotations().await {
        if let Ok(Value::Object(mut mark)) = serde_json::from_str(&text) {
            mark.insert("newer".into(), json!({ "n": 7 }));
            planted.insert(key, json!(Value::Object(mark).to_string()));
        }
    }
    assert_eq!(planted.len(), 2, "{planted:?}");
    let patch = Patch::Merge(json!({ "metadata": { "annotations": planted } }));
    let params = PatchParams::default();
    pools.patch(&pool.name, &params, &patch).await.unwrap();
    let unreserved = sliced.for_network(false);
    let told = ledger.set_mark(&pool, Some(sliced), Some(unreserved)).await;
    assert!(told.unwrap(), "the mark is what was read");
    let both = Closed::by(Some(&closed), "red").unwrap();
    let told = ledger.set_closed(&pool, bar, Some(&closed), Some(&both));
    assert!(told.await.unwrap(), "so is this");
    let now = annotations().await;
    for key in planted.keys() {
        let mark: Value = serde_json::from_str(&now[key]).unwrap();
        assert_eq!(mark["newer"]["n"], 7, "{key}: {mark}");
    }
    assert_eq!(ledger.mark(&pool).await.unwrap(), Some(unreserved));
}

/// One mark that can't be read hides no other range (I5).
#[tokio::test(flavor = "multi_thread")]
async fn berth_15_24_one_unreadable_mark_hides_no_other() {
    let bed = Bed::new("odd-marks").await;
    let ledger = &bed.ledger;
    let key = |text: &str| {
        let range = text.parse().unwrap();
        PoolKey::of_network(berth_api::names::pool("", "", range), range)
    };
    for range in ["10.0.0.0/24", "10.0.1.0/24"] {
        let mark = Some(Mark::sliced(26));
        assert!(ledger.set_mark(&key(range), None, mark).await.unwrap());
    }
    let client = cluster().await.client().await.unwrap();
    let pools: Api<IPPool> = Api::namespaced(client, &bed.namespace);
    let broken = json!({ "metadata": { "annotations": { "berth.dev/sliced": "{" } } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(broken));
    let name = key("10.0.0.0/24").name;
    pools.patch(&name, &params, &patch).await.unwrap();
    let found = ledger.sliced_ranges("").await.unwrap();
    let readable = found.iter().filter(|(_, mark)| mark.is_ok()).count();
    assert_eq!((found.len(), readable), (2, 1), "{found:?}");
}

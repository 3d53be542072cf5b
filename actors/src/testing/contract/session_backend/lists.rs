//! Lists of conversations: of a tenant, of open rounds, and what cannot be read.

use super::{entries, head, scope, write, write_open};
use crate::{
    ids::{CallKey, ConversationId, Scope, Seq, TenantId},
    journal::Head,
    ports::{ListQuery, SessionBackend},
    stream::Open,
    time::Timestamp,
};

pub(super) async fn lists_are_paged_in_order(store: &dyn SessionBackend) {
    let tenant = TenantId::new("t").unwrap();
    let names: Vec<String> = (0..25).map(|n| format!("c{n:02}")).collect();
    for name in names.iter().rev() {
        let open = if name.ends_with('5') {
            Open::Parked
        } else {
            Open::None
        };
        let wake_at = (open == Open::Parked).then_some(Timestamp(77));
        write_open(
            store,
            &scope("t", name),
            Head::default(),
            1,
            2,
            open,
            wake_at,
        )
        .await
        .unwrap();
    }
    write(store, &scope("s", "other"), Head::default(), 1, 1)
        .await
        .unwrap();
    write(store, &scope("u", "other"), Head::default(), 1, 1)
        .await
        .unwrap();

    let mut listed = Vec::new();
    let mut after = None;
    loop {
        let page = store
            .list(
                &tenant,
                ListQuery {
                    after: after.clone(),
                    count: 10,
                    open: None,
                    subagents: false,
                },
            )
            .await
            .unwrap();
        assert!(page.len() <= 10);
        let Some(last) = page.last() else { break };
        after = Some(last.conversation.clone());
        listed.extend(page);
    }

    assert_eq!(
        listed
            .iter()
            .map(|row| row.conversation.as_str().to_owned())
            .collect::<Vec<_>>(),
        names
    );
    for row in &listed {
        assert_eq!((row.head, row.failed.as_deref()), (head(1, 2), None));
        assert!(row.created_at <= row.updated_at);
        assert_eq!(
            row.wake_at,
            (row.open == Open::Parked).then_some(Timestamp(77))
        );
    }
    assert_eq!(
        store.list(&tenant, ListQuery::default()).await.unwrap(),
        listed,
        "0 is 1000"
    );
    assert_eq!(store.count(&tenant).await, Ok(listed.len() as u64));
    assert_eq!(store.count(&TenantId::new("unknown").unwrap()).await, Ok(0));
    let of = async |after: &str, open| {
        let after = Some(ConversationId::new(after).unwrap());
        let rows = store
            .list(
                &tenant,
                ListQuery {
                    after,
                    count: 2,
                    open: Some(open),
                    subagents: false,
                },
            )
            .await
            .unwrap();
        rows.into_iter()
            .map(|row| row.conversation.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("c", Open::Parked).await, ["c05", "c15"]);
    assert_eq!(of("c05", Open::Parked).await, ["c15"]);
    assert_eq!(of("c04", Open::None).await, ["c06", "c07"]);
}

pub(super) async fn lists_leave_out_subagents_unless_they_are_asked_for(
    store: &dyn SessionBackend,
) {
    let tenant = TenantId::new("families").unwrap();
    let of = |name: &str, seq| CallKey {
        scope: Scope::new(tenant.clone(), name.parse().unwrap()),
        seq: Seq(seq),
        index: 0,
    };
    let first = of("c-1", 3);
    let other = of("zz", 3);
    let mut children = vec![
        first.child().conversation,
        of("c-1", 5).child().conversation,
    ];
    children.sort();
    for id in [
        "c-1".parse().unwrap(),
        other.child().conversation,
        "zz".parse().unwrap(),
    ]
    .iter()
    .chain(&children)
    {
        write(
            store,
            &Scope::new(tenant.clone(), id.clone()),
            Head::default(),
            1,
            1,
        )
        .await
        .unwrap();
    }
    let ids = async |query| {
        store
            .list(&tenant, query)
            .await
            .unwrap()
            .into_iter()
            .map(|row| row.conversation)
            .collect::<Vec<_>>()
    };

    let shown: Vec<ConversationId> = ids(ListQuery::default()).await;
    let all = ids(ListQuery {
        subagents: true,
        ..ListQuery::default()
    })
    .await;
    let after = Some(first.scope.conversation.children());
    let behind = ids(ListQuery {
        after,
        subagents: true,
        count: 2,
        ..ListQuery::default()
    })
    .await;

    assert_eq!(shown, ["c-1".parse().unwrap(), "zz".parse().unwrap()]);
    assert_eq!((all.len(), store.count(&tenant).await), (5, Ok(5)));
    assert_eq!(
        behind, children,
        "those of one parent stand together, behind its prefix"
    );
}

pub(super) async fn open_conversations_are_found_across_tenants(store: &dyn SessionBackend) {
    let wakes = [
        ("a", "r", Open::Running, None),
        ("a", "p1", Open::Parked, Some(10)),
        ("b", "p1", Open::Parked, Some(20)),
    ];
    let more = [
        ("b", "p2", Open::Parked, None),
        ("b", "r", Open::Running, None),
        ("c", "n", Open::None, None),
    ];
    for (tenant, name, open, wake_at) in wakes.into_iter().chain(more) {
        write_open(
            store,
            &scope(tenant, name),
            Head::default(),
            1,
            1,
            open,
            wake_at.map(Timestamp),
        )
        .await
        .unwrap();
    }
    let find = async |open, due: Option<u64>, after, count| {
        store
            .list_open(open, due.map(Timestamp), after, count)
            .await
            .unwrap()
    };

    assert_eq!(
        find(Open::Running, None, None, 0).await,
        [scope("a", "r"), scope("b", "r")]
    );
    assert_eq!(
        find(Open::Running, None, Some(scope("a", "r")), 10).await,
        [scope("b", "r")]
    );
    assert_eq!(
        find(Open::Parked, None, None, 2).await,
        [scope("a", "p1"), scope("b", "p1")]
    );
    assert_eq!(
        find(Open::Parked, None, Some(scope("b", "p1")), 2).await,
        [scope("b", "p2")]
    );
    assert_eq!(find(Open::Parked, Some(9), None, 10).await, []);
    assert_eq!(
        find(Open::Parked, Some(10), None, 10).await,
        [scope("a", "p1")]
    );
    assert_eq!(
        find(Open::Parked, Some(99), None, 10).await,
        [scope("a", "p1"), scope("b", "p1")],
        "no wake_at is never due"
    );
    assert_eq!(find(Open::None, None, None, 10).await, [scope("c", "n")]);

    write_open(
        store,
        &scope("a", "r"),
        head(1, 1),
        1,
        2,
        Open::Parked,
        Some(Timestamp(5)),
    )
    .await
    .unwrap();
    write(store, &scope("b", "r"), head(1, 1), 1, 2)
        .await
        .unwrap();
    write_open(
        store,
        &scope("a", "p1"),
        head(1, 1),
        1,
        2,
        Open::Parked,
        Some(Timestamp(100)),
    )
    .await
    .unwrap();

    assert_eq!(
        find(Open::Running, None, None, 10).await,
        [],
        "the state is that of the last append"
    );
    assert_eq!(
        find(Open::Parked, Some(99), None, 10).await,
        [scope("a", "r"), scope("b", "p1")]
    );
}

pub(super) async fn a_failed_mark_is_seen_and_cleared(store: &dyn SessionBackend) {
    let scope = scope("t", "c");
    write_open(store, &scope, Head::default(), 1, 1, Open::Running, None)
        .await
        .unwrap();
    let failed = async || {
        store
            .list(&scope.tenant, ListQuery::default())
            .await
            .unwrap()[0]
            .failed
            .clone()
    };

    store
        .mark_failed(&scope, Some("entry 1 is damaged".into()))
        .await
        .unwrap();
    assert_eq!(failed().await.as_deref(), Some("entry 1 is damaged"));
    assert_eq!(
        store.list_open(Open::Running, None, None, 10).await,
        Ok(vec![]),
        "no host resumes what cannot be read"
    );
    assert_eq!(
        store.load(&scope).await.unwrap().entries,
        entries(1, 1),
        "what is readable stays so"
    );

    store.mark_failed(&scope, None).await.unwrap();
    assert_eq!(failed().await, None);
    assert_eq!(
        store.list_open(Open::Running, None, None, 10).await,
        Ok(vec![scope.clone()])
    );
}

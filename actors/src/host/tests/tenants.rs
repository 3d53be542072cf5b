//! Tenants: configuration, and admission of prompts.

use std::sync::Arc;

use super::{builder, host};
use crate::{
    Host,
    host::{BuildError, TenantConfig},
    ids::TenantId,
    limits::Limits,
    scripted::Reply,
    testing::ScriptedModel,
};

fn id(text: &str) -> TenantId {
    TenantId::new(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_seat_is_free_again_when_its_mail_is_dropped() {
    let limits = Limits {
        tenant_seats_max: 2,
        ..Limits::default()
    };
    let host = builder(&Arc::new(ScriptedModel::replies([])))
        .limits(limits)
        .build()
        .await
        .unwrap();
    let tenant = host.0.tenants.get(&id("t"));

    let seats = (tenant.admit(), tenant.admit(), tenant.admit());
    assert!(seats.0.is_ok() && seats.1.is_ok() && seats.2.is_err());
    drop(seats);

    assert_eq!(tenant.seats_taken(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_has_its_own_model_credential_and_words() {
    let usual = Arc::new(ScriptedModel::replies([Reply::text("usual")]));
    let own = Arc::new(ScriptedModel::replies([Reply::text("own")]));
    let host: Host = host(&usual).await;
    host.add_gateway("acme", own.clone(), host.gateway_config().clone())
        .unwrap();
    let config = TenantConfig::new()
        .gateway("acme")
        .model("small")
        .system("Be brief.");
    host.configure_tenant(&id("acme"), config).await.unwrap();

    let said = host
        .tenant("acme")
        .conversation("c")
        .send("hello")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    let other = host
        .tenant("other")
        .conversation("c")
        .send("hello")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!((said.text.as_str(), other.text.as_str()), ("own", "usual"));
    let asked = own.requests().pop().unwrap();
    assert_eq!(
        (&*asked.model, asked.system.as_deref()),
        ("small", Some("Be brief."))
    );
    assert_eq!(usual.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_without_its_gateway_stays_as_it_was() {
    let model = Arc::new(ScriptedModel::replies([Reply::text("hello")]));
    let host = host(&model).await;

    let error = host
        .configure_tenant(&id("acme"), TenantConfig::new().gateway("nowhere"))
        .await
        .unwrap_err();

    assert_eq!(error, BuildError::NoSuchGateway("nowhere".into()));
    assert!(
        host.tenant("acme")
            .conversation("c")
            .send("hello")
            .await
            .unwrap()
            .outcome()
            .await
            .is_ok()
    );
}

//! The real API server and etcd: they start, refuse requests, survive kill -9, can be paused, and end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use berth_testkit::{Cluster, Netns, Options, Part};
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use serde_json::json;

fn config_map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        data: Some([("value".into(), value.into())].into()),
        ..ConfigMap::default()
    }
}

fn refused(error: kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

#[tokio::test]
async fn it_serves_the_pinned_version() {
    let client = Cluster::shared().await.client().await.unwrap();
    let version = client.apiserver_version().await.unwrap();
    assert_eq!(version.git_version, "v1.36.4");
}

#[tokio::test]
async fn namespaces_are_ones_own() {
    let cluster = Cluster::shared().await;
    let (a, b) = (
        cluster.namespace("own").await.unwrap(),
        cluster.namespace("own").await.unwrap(),
    );
    assert_ne!(a, b);
    let client = cluster.client().await.unwrap();
    Api::namespaced(client.clone(), &a)
        .create(&PostParams::default(), &config_map("mine", "a"))
        .await
        .unwrap();
    let others: Api<ConfigMap> = Api::namespaced(client, &b);
    assert!(others.get_opt("mine").await.unwrap().is_none());
}

#[tokio::test]
async fn a_pod_object_needs_no_service_account() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("pods").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    let pod = serde_json::from_value(json!({
        "metadata": { "name": "bare" },
        "spec": { "containers": [{ "name": "c", "image": "none" }] },
    }))
    .unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
}

#[tokio::test]
async fn rbac_refuses_what_was_not_granted() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("rbac").await.unwrap();
    let rules = json!([
        { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"] }
    ]);
    let account = cluster
        .service_account(&namespace, "reader", rules)
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(account.client().await.unwrap(), &namespace);
    maps.list(&ListParams::default()).await.unwrap();
    let error = maps
        .create(&PostParams::default(), &config_map("x", "y"))
        .await
        .unwrap_err();
    assert!(refused(error, 403));
    assert!(!format!("{account:?}").contains(account.token()));
}

#[tokio::test]
async fn a_requested_token_is_that_of_the_account() {
    let cluster = Cluster::shared().await;
    let namespace = cluster.namespace("token").await.unwrap();
    let account = cluster
        .service_account(&namespace, "robot", json!([]))
        .await
        .unwrap();
    let review: TokenReview = serde_json::from_value(json!({
        "metadata": {}, "spec": { "token": account.token() },
    }))
    .unwrap();
    let reviews: Api<TokenReview> = Api::all(cluster.client().await.unwrap());
    let answer = reviews
        .create(&PostParams::default(), &review)
        .await
        .unwrap();
    let user = answer.status.unwrap().user.unwrap().username.unwrap();
    assert_eq!(user, format!("system:serviceaccount:{namespace}:robot"));
}

#[tokio::test]
async fn a_definition_and_its_object_apply_in_one_go() {
    let cluster = Cluster::shared().await;
    let applied = cluster.apply(include_str!("widget.yaml")).await.unwrap();
    assert_eq!(applied.len(), 2);
    assert_eq!(applied[1].data["size"], 3);
    let error = cluster
        .apply("apiVersion: nobody.serves/v1\nkind: Ghost\nmetadata: { name: g }\n")
        .await
        .unwrap_err();
    assert!(format!("{error:#}").contains("Ghost"), "{error:#}");
}

#[tokio::test]
async fn kill_and_restart_keep_what_was_acknowledged() {
    let cluster = Cluster::start().await.unwrap();
    let namespace = cluster.namespace("kill").await.unwrap();
    let client = cluster.client().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    for (n, part) in [Part::ApiServer, Part::Etcd].into_iter().enumerate() {
        let name = format!("before-{n}");
        maps.create(&PostParams::default(), &config_map(&name, "kept"))
            .await
            .unwrap();
        cluster.kill(part).unwrap();
        if part == Part::ApiServer {
            maps.get(&name).await.unwrap_err();
        }
        cluster.restart(part).await.unwrap();
        // A new client: whether a connection of the old one recovers is not tested here.
        let maps: Api<ConfigMap> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
        let kept = maps.get(&name).await.unwrap();
        assert_eq!(kept.data.unwrap()["value"], "kept");
    }
}

#[tokio::test]
async fn a_paused_server_answers_nothing_and_then_goes_on() {
    let cluster = Cluster::start_with(Options {
        unsafe_no_fsync: true,
        apiserver_args: vec!["--max-requests-inflight=50".into()],
        ..Options::default()
    })
    .await
    .unwrap();
    let namespace = cluster.namespace("pause").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().await.unwrap(), &namespace);
    for part in [Part::ApiServer, Part::Etcd] {
        cluster.pause(part).unwrap();
        let name = format!("{part:?}").to_lowercase();
        let map = config_map(&name, "late");
        let parameters = PostParams::default();
        let write = maps.create(&parameters, &map);
        tokio::pin!(write);
        tokio::time::timeout(Duration::from_secs(2), &mut write)
            .await
            .expect_err("a paused part answered");
        cluster.resume(part).unwrap();
        write.await.unwrap();
    }
}

#[tokio::test]
async fn a_cluster_in_a_namespace_is_reached_from_outside() {
    let netns = Netns::new().unwrap();
    let cluster = Cluster::start_with(Options {
        netns: Some(netns.path().to_owned()),
        unsafe_no_fsync: true,
        ..Options::default()
    })
    .await
    .unwrap();
    cluster.namespace("inside").await.unwrap();
    let listening = netns.exec(&["cat", "/proc/net/tcp"]).unwrap();
    let port = format!("0100007F:{:04X}", cluster.port());
    assert!(String::from_utf8_lossy(&listening.stdout).contains(&port));
}

#[tokio::test]
async fn a_part_that_cannot_start_shows_its_log() {
    let error = Cluster::start_with(Options {
        apiserver_args: vec!["--no-such-flag".into()],
        ..Options::default()
    })
    .await
    .unwrap_err();
    assert!(format!("{error:#}").contains("no-such-flag"), "{error:#}");
}

//! The client against the local cloud: every answer that the front must tell apart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;
use std::time::Duration;

use berth_gcp::cloud::{
    AliasRange, Cloud, CloudError, Endpoints, Metadata, RangeRequest, RequestId, SecondaryRange,
    TokenSource, Whereabouts,
};
use berth_testcloud::{AliasRange as Seen, ApiError, Cloud as LocalCloud, Fault, Project, Stale};

const ZONE: &str = "us-central1-a";
const REGION: &str = "us-central1";

fn project() -> Project {
    let mut project = Project::new("berth-test");
    project.add_subnetwork(REGION, "nodes", "10.128.0.0/20");
    project.add_secondary_range(REGION, "nodes", "pods", "10.4.0.0/14");
    project.add_secondary_range(REGION, "nodes", "live", "10.111.0.0/16");
    for (name, own) in [("node-a", "10.4.0.0/24"), ("node-b", "10.4.1.0/24")] {
        project.add_instance(ZONE, name, (REGION, "nodes"), vec![Seen::of("pods", own)]);
    }
    project
}

struct Scene {
    local: LocalCloud,
    cloud: Cloud,
    metadata: Metadata,
}

async fn scene(project: Project) -> Scene {
    let local = LocalCloud::start(project).await.unwrap();
    let host = local.metadata(ZONE, "node-a").await.unwrap();
    let metadata = Metadata::new(Some(&host));
    let endpoint = local.endpoint();
    let endpoints = Endpoints::new(Some(&endpoint), Some(&endpoint)).unwrap();
    let source = TokenSource::Metadata(metadata.clone());
    let cloud = Cloud::new("berth-test", endpoints, source, Duration::from_secs(10));
    Scene {
        local,
        cloud,
        metadata,
    }
}

fn live(address: &str) -> AliasRange {
    AliasRange::of(address.parse().unwrap(), Some("live"))
}

impl Scene {
    /// Reads the NIC and sets its aliases to the foreign ones and `ours`.
    async fn set(&self, node: &str, ours: &[&str], request: &RequestId) -> Result<(), CloudError> {
        let instance = self.cloud.instance(ZONE, node).await?;
        let nic = instance.nic("nic0")?;
        let mut aliases: Vec<AliasRange> = nic
            .aliases
            .iter()
            .filter(|alias| alias.range.as_deref() != Some("live"))
            .cloned()
            .collect();
        aliases.extend(ours.iter().map(|address| live(address)));
        let operation = self
            .cloud
            .set_aliases((ZONE, node), ("nic0", &nic.fingerprint), &aliases, request)
            .await?;
        self.cloud.wait(&operation).await
    }

    fn aliases(&self, node: &str) -> Vec<String> {
        let aliases = self
            .local
            .project(|project| project.aliases(ZONE, node))
            .unwrap();
        aliases
            .into_iter()
            .map(|alias| alias.ip_cidr_range)
            .collect()
    }
}

#[tokio::test]
async fn a_vm_knows_where_it_is() {
    let scene = scene(project()).await;
    let found = scene.metadata.whereabouts().await.unwrap();
    let expected = Whereabouts {
        project: "berth-test".to_owned(),
        zone: ZONE.to_owned(),
        instance: "node-a".to_owned(),
    };
    assert_eq!(found, expected);
    assert_eq!(found.region(), REGION);
    // A pod with Workload Identity sees GKE's own metadata server, which has no instance/name.
    scene.local.project(|project| project.gke_metadata = true);
    assert_eq!(scene.metadata.whereabouts().await.unwrap(), expected);
}

#[tokio::test]
async fn aliases_are_added_and_the_last_one_is_removed() {
    let scene = scene(project()).await;
    scene
        .set(
            "node-a",
            &["10.111.0.5", "10.111.0.4"],
            &RequestId::random(),
        )
        .await
        .unwrap();
    assert_eq!(
        scene.aliases("node-a"),
        ["10.4.0.0/24", "10.111.0.4/32", "10.111.0.5/32"]
    );
    scene
        .set("node-a", &[], &RequestId::random())
        .await
        .unwrap();
    assert_eq!(scene.aliases("node-a"), ["10.4.0.0/24"]);
    // A NIC with nothing but one alias of ours: the empty list is really sent.
    scene.local.project(|project| {
        project.set_aliases(ZONE, "node-b", vec![Seen::of("live", "10.111.0.9/32")])
    });
    scene
        .set("node-b", &[], &RequestId::random())
        .await
        .unwrap();
    assert!(scene.aliases("node-b").is_empty());
    // One wait for each operation, and no polls.
    assert_eq!(scene.local.count("zoneOperations.wait"), 3);
    assert_eq!(scene.local.count("zoneOperations.get"), 0);
}

#[tokio::test]
async fn adding_and_removing_in_one_request_is_refused() {
    let scene = scene(project()).await;
    scene
        .set("node-a", &["10.111.0.4"], &RequestId::random())
        .await
        .unwrap();
    let refused = scene
        .set("node-a", &["10.111.0.5"], &RequestId::random())
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, CloudError::Refused(text) if text.contains("simultaneously")),
        "{refused}"
    );
    assert!(!refused.is_transient());
}

#[tokio::test]
async fn a_stale_fingerprint_is_stale_in_the_answer_and_in_the_operation() {
    for stale in [Stale::Answer, Stale::Operation] {
        let mut project = project();
        project.stale = stale;
        let scene = scene(project).await;
        let request = RequestId::random();
        let sent = scene
            .cloud
            .set_aliases(
                (ZONE, "node-a"),
                ("nic0", "AAAAAAAAAAA="),
                &[live("10.111.0.4")],
                &request,
            )
            .await;
        let outcome = match sent {
            Ok(operation) => scene.cloud.wait(&operation).await,
            Err(error) => Err(error),
        };
        assert!(
            matches!(outcome, Err(CloudError::Stale(_))),
            "{stale:?}: {outcome:?}"
        );
        assert_eq!(scene.aliases("node-a"), ["10.4.0.0/24"]);
    }
}

#[tokio::test]
async fn an_address_on_another_vm_is_in_use() {
    let scene = scene(project()).await;
    scene
        .set("node-a", &["10.111.0.4"], &RequestId::random())
        .await
        .unwrap();
    let clash = scene
        .set("node-b", &["10.111.0.4"], &RequestId::random())
        .await
        .unwrap_err();
    assert!(matches!(clash, CloudError::InUse(_)), "{clash}");
    assert_eq!(
        scene.local.project(|project| project.holders("10.111.0.4")),
        [(ZONE.to_owned(), "node-a".to_owned())]
    );
}

#[tokio::test]
async fn a_repeat_with_the_same_request_id_is_carried_out_once() {
    let scene = scene(project()).await;
    let request = RequestId::random();
    let mut lost = false;
    scene.local.faults(move |request| {
        let first = request.call == "instances.updateNetworkInterface" && !lost;
        lost |= first;
        first.then_some(Fault::LoseAnswer)
    });
    let outcome = scene
        .set("node-a", &["10.111.0.4"], &request)
        .await
        .unwrap_err();
    assert!(outcome.outcome_unknown(), "{outcome}");
    // The same request again: the fingerprint is stale by now, and still it is no error.
    let nic = vec![
        AliasRange {
            cidr: "10.4.0.0/24".to_owned(),
            range: Some("pods".to_owned()),
            other: serde_json::Map::new(),
        },
        live("10.111.0.4"),
    ];
    let operation = scene
        .cloud
        .set_aliases((ZONE, "node-a"), ("nic0", "AAAAAAAAAAA="), &nic, &request)
        .await
        .unwrap();
    scene.cloud.wait(&operation).await.unwrap();
    assert_eq!(scene.aliases("node-a"), ["10.4.0.0/24", "10.111.0.4/32"]);
}

#[tokio::test]
async fn a_second_update_while_one_runs_is_not_ready() {
    let mut project = project();
    project.operation_time = Duration::from_secs(600);
    let scene = scene(project).await;
    let instance = scene.cloud.instance(ZONE, "node-a").await.unwrap();
    let nic = instance.nic("nic0").unwrap();
    let mut aliases = nic.aliases.clone();
    aliases.push(live("10.111.0.4"));
    let send = || {
        let request = RequestId::random();
        let (cloud, nic, aliases) = (scene.cloud.clone(), nic.clone(), aliases.clone());
        async move {
            cloud
                .set_aliases(
                    (ZONE, "node-a"),
                    ("nic0", &nic.fingerprint),
                    &aliases,
                    &request,
                )
                .await
        }
    };
    send().await.unwrap();
    let second = send().await.unwrap_err();
    assert!(matches!(second, CloudError::NotReady(_)), "{second}");
}

#[tokio::test]
async fn limits_and_quotas_are_told_apart() {
    let mut project = project();
    project.limits.aliases_per_nic = 2;
    let scene = scene(project).await;
    let full = scene
        .set(
            "node-a",
            &["10.111.0.4", "10.111.0.5"],
            &RequestId::random(),
        )
        .await
        .unwrap_err();
    assert!(matches!(full, CloudError::NicFull(_)), "{full}");
    scene
        .local
        .project(|project| project.limits.aliases_per_network = 2);
    let quota = scene
        .set("node-a", &["10.111.0.4"], &RequestId::random())
        .await
        .unwrap_err();
    assert!(matches!(quota, CloudError::Quota(_)), "{quota}");
    scene
        .local
        .project(|project| project.limits.requests_per_minute = 0);
    let rate = scene.cloud.instance(ZONE, "node-a").await.unwrap_err();
    assert!(matches!(rate, CloudError::RateLimited { .. }), "{rate}");
}

#[tokio::test]
async fn faults_of_the_service_are_transient_and_named() {
    let scene = scene(project()).await;
    let denied = "Required 'compute.instances.get' permission for 'projects/berth-test/zones/us-central1-a/instances/node-a'";
    let cases: Vec<(Fault, bool, &str)> = vec![
        (
            Fault::Refuse(ApiError::new(503, "backendError", "try later")),
            true,
            "503: try later",
        ),
        (
            Fault::Refuse(ApiError::new(429, "tooMany", "slow down")),
            true,
            "slow down",
        ),
        (Fault::NotJson(200), true, "not JSON"),
        (Fault::NotJson(502), true, "not JSON"),
        (Fault::Cut, true, "unavailable"),
        (
            Fault::Refuse(ApiError::new(403, "forbidden", denied)),
            false,
            "compute.instances.get",
        ),
    ];
    for (fault, transient, text) in cases {
        let shown = format!("{fault:?}");
        scene
            .local
            .faults(move |request| (request.call == "instances.get").then(|| fault.clone()));
        let error = scene.cloud.instance(ZONE, "node-a").await.unwrap_err();
        scene.local.faults(|_| None);
        assert_eq!(error.is_transient(), transient, "{shown}: {error}");
        assert!(error.to_string().contains(text), "{shown}: {error}");
        scene.cloud.instance(ZONE, "node-a").await.unwrap();
    }
}

#[tokio::test]
async fn an_instance_that_is_gone_is_not_found() {
    let scene = scene(project()).await;
    scene
        .local
        .project(|project| project.remove_instance(ZONE, "node-b"));
    let gone = scene.cloud.instance(ZONE, "node-b").await.unwrap_err();
    assert!(matches!(gone, CloudError::NotFound(_)), "{gone}");
}

#[tokio::test]
async fn an_operation_fails_or_never_ends() {
    let scene = scene(project()).await;
    scene.local.faults(|request| {
        let update = request.call == "instances.updateNetworkInterface";
        update.then(|| Fault::FailOperation("INTERNAL_ERROR".to_owned(), "out of luck".to_owned()))
    });
    let failed = scene
        .set("node-a", &["10.111.0.4"], &RequestId::random())
        .await
        .unwrap_err();
    assert!(
        matches!(&failed, CloudError::Unavailable(text) if text.contains("out of luck")),
        "{failed}"
    );

    scene.local.faults(|request| {
        (request.call == "instances.updateNetworkInterface").then_some(Fault::EndlessOperation)
    });
    let endpoint = scene.local.endpoint();
    let endpoints = Endpoints::new(Some(&endpoint), None).unwrap();
    let source = TokenSource::Metadata(scene.metadata.clone());
    let hasty = Cloud::new("berth-test", endpoints, source, Duration::from_millis(200));
    let nic = hasty
        .instance(ZONE, "node-b")
        .await
        .unwrap()
        .nic("nic0")
        .unwrap()
        .clone();
    let mut aliases = nic.aliases.clone();
    aliases.push(live("10.111.0.7"));
    let operation = hasty
        .set_aliases(
            (ZONE, "node-b"),
            ("nic0", &nic.fingerprint),
            &aliases,
            &RequestId::random(),
        )
        .await
        .unwrap();
    let late = hasty.wait(&operation).await.unwrap_err();
    assert!(
        matches!(&late, CloudError::OperationTimeout(name) if name == &operation.name),
        "{late}"
    );
}

#[tokio::test]
async fn a_wait_that_returns_early_is_repeated() {
    let mut project = project();
    project.operation_time = Duration::from_millis(700);
    project.wait_time = Duration::ZERO;
    let scene = scene(project).await;
    scene
        .set("node-a", &["10.111.0.4"], &RequestId::random())
        .await
        .unwrap();
    assert!(scene.local.count("zoneOperations.wait") >= 2);
}

#[tokio::test]
async fn a_refused_token_is_renewed_once() {
    let scene = scene(project()).await;
    scene.cloud.instance(ZONE, "node-a").await.unwrap();
    scene.local.revoke_tokens();
    scene.cloud.instance(ZONE, "node-a").await.unwrap();
    let tokens = scene
        .local
        .requests()
        .into_iter()
        .filter(|request| request.path.ends_with("/token"))
        .count();
    assert_eq!(tokens, 2);
}

#[tokio::test]
async fn the_metadata_server_away_is_named() {
    let metadata = Metadata::new(Some("127.0.0.1:1"));
    let error = metadata.whereabouts().await.unwrap_err();
    assert!(error.is_transient());
    assert!(
        error.to_string().contains("metadata server 127.0.0.1:1"),
        "{error}"
    );
}

#[tokio::test]
async fn another_project_is_denied() {
    let scene = scene(project()).await;
    let endpoint = scene.local.endpoint();
    let endpoints = Endpoints::new(Some(&endpoint), None).unwrap();
    let other = Cloud::new(
        "other",
        endpoints,
        TokenSource::Metadata(scene.metadata.clone()),
        Duration::from_secs(5),
    );
    let denied = other.instance(ZONE, "node-a").await.unwrap_err();
    assert!(
        matches!(&denied, CloudError::Denied(text) if text.contains("'other'")),
        "{denied}"
    );
}

#[tokio::test]
async fn secondary_ranges_are_added_with_all_others_untouched() {
    let scene = scene(project()).await;
    let request = RangeRequest {
        id: "more".to_owned(),
        network: "projects/berth-test/global/networks/default".to_owned(),
        prefix_length: 16,
        within: vec!["10.0.0.0/8".to_owned()],
        excluded: vec!["10.0.0.0/16".to_owned()],
    };
    let range = scene
        .cloud
        .reserve_range(&request, &RequestId::random())
        .await
        .unwrap();
    assert_eq!(range.cidr, "10.1.0.0/16");
    let subnet = scene.cloud.subnetwork(REGION, "nodes").await.unwrap();
    let mut ranges = subnet.secondary.clone();
    ranges.push(SecondaryRange {
        name: "more".to_owned(),
        cidr: String::new(),
        internal_range: Some(range.name.clone()),
        other: serde_json::Map::new(),
    });
    let operation = scene
        .cloud
        .set_secondary_ranges(&subnet, &ranges, &RequestId::random())
        .await
        .unwrap();
    scene.cloud.wait(&operation).await.unwrap();
    let after = scene.cloud.subnetwork(REGION, "nodes").await.unwrap();
    assert_eq!(after.secondary[..2], subnet.secondary[..]);
    assert_eq!(after.secondary[2].cidr, "10.1.0.0/16");
    // A range in use can't be released; afterwards it can.
    let used = scene
        .cloud
        .release_range("more", &RequestId::random())
        .await
        .unwrap_err();
    assert!(used.to_string().contains("is used by"), "{used}");
    let operation = scene
        .cloud
        .set_secondary_ranges(&after, &subnet.secondary, &RequestId::random())
        .await
        .unwrap();
    scene.cloud.wait(&operation).await.unwrap();
    scene
        .cloud
        .release_range("more", &RequestId::random())
        .await
        .unwrap();
    let gone = scene.cloud.internal_range("more").await.unwrap_err();
    assert!(matches!(gone, CloudError::NotFound(_)), "{gone}");
}

#[tokio::test]
async fn addresses_of_the_primary_range_are_reserved_and_released() {
    let scene = scene(project()).await;
    let address = "10.128.0.77".parse().unwrap();
    let subnet = "projects/berth-test/regions/us-central1/subnetworks/nodes";
    let reserve = async || {
        let request = RequestId::random();
        let place = (REGION, subnet);
        scene
            .cloud
            .reserve_address(place, ("pod-1", address), &request)
            .await
    };
    let operation = reserve().await.unwrap();
    scene.cloud.wait(&operation).await.unwrap();
    assert!(!scene.cloud.address(REGION, "pod-1").await.unwrap().in_use);
    assert!(matches!(
        reserve().await.unwrap_err(),
        CloudError::AlreadyExists(_)
    ));
    let operation = scene
        .cloud
        .release_address(REGION, "pod-1", &RequestId::random())
        .await
        .unwrap();
    scene.cloud.wait(&operation).await.unwrap();
    assert!(matches!(
        scene.cloud.address(REGION, "pod-1").await.unwrap_err(),
        CloudError::NotFound(_)
    ));
}

#[tokio::test]
async fn a_key_file_gives_a_token() {
    let scene = scene(project()).await;
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new("openssl")
            .args(arguments)
            .output()
            .expect("openssl is installed");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    };
    let pem = dir.path().join("key.pem");
    let pem = pem.to_str().unwrap();
    run(&[
        "genpkey",
        "-algorithm",
        "RSA",
        "-pkeyopt",
        "rsa_keygen_bits:2048",
        "-out",
        pem,
    ]);
    scene.local.trust_key(run(&[
        "rsa",
        "-in",
        pem,
        "-RSAPublicKey_out",
        "-outform",
        "DER",
    ]));
    let file = dir.path().join("key.json");
    let key = serde_json::json!({
        "type": "service_account", "client_email": "berth@berth-test.iam.gserviceaccount.com", "private_key_id": "1",
        "private_key": std::fs::read_to_string(pem).unwrap(), "token_uri": format!("{}/token", scene.local.endpoint()),
    });
    std::fs::write(&file, key.to_string()).unwrap();
    let endpoint = scene.local.endpoint();
    let endpoints = Endpoints::new(Some(&endpoint), None).unwrap();
    let with_key = |file| {
        Cloud::new(
            "berth-test",
            endpoints.clone(),
            TokenSource::KeyFile(file),
            Duration::from_secs(5),
        )
    };
    with_key(file.clone())
        .instance(ZONE, "node-a")
        .await
        .unwrap();
    std::fs::write(&file, "{}").unwrap();
    let error = with_key(file.clone())
        .instance(ZONE, "node-a")
        .await
        .unwrap_err();
    assert!(
        matches!(&error, CloudError::Unauthenticated(text) if text.contains("key.json")),
        "{error}"
    );
    let zero = with_key("/dev/zero".into())
        .instance(ZONE, "node-a")
        .await
        .unwrap_err();
    assert!(zero.to_string().contains("not a regular file"), "{zero}");
}

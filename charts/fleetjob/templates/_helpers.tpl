{{/* Names are fleetjob-…, or <release>-fleetjob-… in a release of another name; nameOverride is said instead of
     fleetjob, fullnameOverride instead of both. */}}
{{- define "fleetjob.name" -}}
{{- $name := .Values.nameOverride | default "fleetjob" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc (int (sub 49 (len $name))) | trimSuffix "-") $name -}}
{{- end -}}
{{- end -}}

{{- define "fleetjob.selector" -}}
app.kubernetes.io/name: fleetjob
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end -}}

{{- define "fleetjob.labels" -}}
{{ include "fleetjob.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The name in the certificate of /metrics where it needs a token: that of its Service. */}}
{{- define "fleetjob.metricsHost" -}}
{{- printf "%s-metrics.%s.svc" (include "fleetjob.name" .) .Release.Namespace -}}
{{- end -}}

{{/* Refuses ports that meet. */}}
{{- define "fleetjob.checkPorts" -}}
{{- $ports := dict "hub.port" .Values.hub.port "metrics.port" .Values.metrics.port -}}
{{- if .Values.metrics.auth.enabled -}}
{{- $_ := set $ports "metrics.auth.port" .Values.metrics.auth.port -}}
{{- end -}}
{{- $seen := dict -}}
{{- range $name, $port := $ports -}}
{{- $key := printf "%d" (int $port) -}}
{{- with get $seen $key -}}
{{- fail (printf "%s and %s must differ: both are %s" . $name $key) -}}
{{- end -}}
{{- $_ := set $seen $key $name -}}
{{- end -}}
{{- end -}}

{{- define "fleetjob.serviceAccount" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false: serviceAccount.name must name the account that exists" -}}
{{- end -}}
{{- .Values.serviceAccount.name | default (printf "%s-controller" (include "fleetjob.name" .)) -}}
{{- end -}}

{{/* A quantity as a number: bytes, processors. */}}
{{- define "fleetjob.quantity" -}}
{{- $units := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 -}}
{{- if kindIs "string" . -}}
{{- mulf (regexFind "^[0-9.]+" . | float64) (get $units (regexFind "[A-Za-z]*$" .)) -}}
{{- else -}}
{{- float64 . -}}
{{- end -}}
{{- end -}}

{{/* Refuses limits below the requests, and below what the controller needs to run. */}}
{{- define "fleetjob.checkResources" -}}
{{- $least := dict "memory" "64Mi" "cpu" "20m" -}}
{{- range $name, $limit := .Values.resources.limits -}}
{{- $value := include "fleetjob.quantity" $limit | float64 -}}
{{- with get $least $name -}}
{{- if lt $value (include "fleetjob.quantity" . | float64) -}}
{{- fail (printf "resources.limits.%s is %v: the controller does not run with less than %s" $name $limit .) -}}
{{- end -}}
{{- end -}}
{{- with get ($.Values.resources.requests | default dict) $name -}}
{{- if lt $value (include "fleetjob.quantity" . | float64) -}}
{{- fail (printf "resources.limits.%s is %v, below resources.requests.%s, which is %v: raise the limit or lower the request" $name $limit $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The list of tolerations, with our time for nodes that do not answer unless it has one. */}}
{{- define "fleetjob.tolerations" -}}
{{- $list := .Values.tolerations -}}
{{- $seconds := int .Values.unreachableSeconds -}}
{{- range list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- $key := . -}}
{{- $isThere := false -}}
{{- range $list -}}
{{- if and (has (.key | default $key) (list $key)) (has (.effect | default "NoExecute") (list "NoExecute")) -}}
{{- $isThere = true -}}
{{- end -}}
{{- end -}}
{{- if not $isThere -}}
{{- $list = append $list (dict "key" $key "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" $seconds) -}}
{{- end -}}
{{- end -}}
{{- toYaml $list -}}
{{- end -}}

{{- define "fleetjob.image" -}}
{{- printf "%s/fleetjob-%s:%s" .Values.image.registry .part (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "fleetjob.controllerImage" -}}
{{- .Values.image.controller | default (include "fleetjob.image" (merge (dict "part" "controller") .)) -}}
{{- end -}}

{{- define "fleetjob.runtimeImage" -}}
{{- .Values.image.runtime | default (include "fleetjob.image" (merge (dict "part" "runtime") .)) -}}
{{- end -}}

{{/* Two controllers that manage the same jobs would fight over their pods: fails if another release has the rights to.
     Seen is what Helm may read in any case: all bindings for all namespaces, else those in the namespaces of the list. */}}
{{- define "fleetjob.refuseOthers" -}}
{{- $api := "rbac.authorization.k8s.io/v1" }}
{{- $bindings := list }}
{{- range .Values.namespaces }}
{{- $bindings = concat $bindings ((lookup $api "RoleBinding" . "").items | default list) }}
{{- else }}
{{- $bindings = concat ((lookup $api "ClusterRoleBinding" "" "").items | default list) ((lookup $api "RoleBinding" "" "").items | default list) }}
{{- end }}
{{- range $bindings }}
{{- $release := printf "%s/%s" (dig "annotations" "meta.helm.sh/release-namespace" "" .metadata) (dig "annotations" "meta.helm.sh/release-name" "" .metadata) }}
{{- $isForJobs := or (and (eq .kind "ClusterRoleBinding") (hasSuffix "-controller" .metadata.name)) (hasSuffix "-controller-jobs" .metadata.name) }}
{{- if and $isForJobs (eq (dig "labels" "app.kubernetes.io/name" "" .metadata) "fleetjob") (ne $release (printf "%s/%s" $.Release.Namespace $.Release.Name)) }}
{{- fail (printf "release %s manages the FleetJobs in %s already, and two controllers would fight over them: uninstall it, or give both a list of namespaces of their own" $release (ternary (printf "namespace %s" .metadata.namespace) "all namespaces" (hasKey .metadata "namespace"))) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* What the controller may do where there are FleetJobs; each line names the file that needs it. */}}
{{- define "fleetjob.jobRules" -}}
- apiGroups: [fleetjob.dev]
  resources: [fleetjobs]
  verbs:
    - list # controller/machinery/reflector.c
    - watch # controller/machinery/reflector.c
    - get # controller/fleetjob/status_writer.c: whether a write that got no answer arrived
    - delete # controller/fleetjob/apply.c: runPolicy.ttlSecondsAfterFinished
- apiGroups: [fleetjob.dev]
  resources: [fleetjobs/status]
  verbs:
    - patch # controller/fleetjob/status_writer.c
- apiGroups: [fleetjob.dev]
  resources: [fleetjobs/finalizers]
  verbs:
    - update # libfleet/kube/meta.c: blockOwnerDeletion, where OwnerReferencesPermissionEnforcement is on
- apiGroups: [""]
  resources: [pods]
  verbs:
    - list # controller/machinery/reflector.c
    - watch # controller/machinery/reflector.c
    - get # controller/fleetjob/apply.c, pod_labels.c: whose pod has the name already; is it gone
    - patch # controller/fleetjob/pod_labels.c: put back the labels that the watch selects by
    - create # controller/fleetjob/apply.c, prepare.c (dry run)
    - delete # controller/fleetjob/apply.c, reconciler.c
- apiGroups: [""]
  resources: [secrets]
  verbs:
    - create # controller/fleetjob/job_objects.c: the job's token; no get, list, watch, patch or update: each returns the Secret
    - delete # controller/fleetjob/job_objects.c: before it is created with another content
- apiGroups: [""]
  resources: [services]
  verbs:
    - list # controller/machinery/reflector.c: one that was deleted is made again
    - watch # controller/machinery/reflector.c
    - create # controller/fleetjob/job_objects.c: names for the pods
    - delete # controller/fleetjob/job_objects.c: one that a job of the same name left behind; no patch or update: they redirect any Service
- apiGroups: [scheduling.volcano.sh, scheduling.x-k8s.io]
  resources: [podgroups]
  verbs:
    - create # controller/fleetjob/job_objects.c: runPolicy.scheduling.gang
    - patch # controller/fleetjob/job_objects.c: after a change of worker.minReplicas
- apiGroups: [""]
  resources: [events]
  verbs:
    - list # controller/fleetjob/pod_events.c: why a pod that has a node does not start
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs:
    - create # controller/machinery/event_recorder.c
    - patch # controller/machinery/event_recorder.c: the same again is counted
{{- end -}}

{{/* Names are fleetjob-…, or <release>-fleetjob-… in a release of another name. */}}
{{- define "fleetjob.name" -}}
{{- if contains "fleetjob" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-fleetjob" (.Release.Name | trunc 41 | trimSuffix "-") -}}
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
{{- end -}}

{{- define "fleetjob.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (printf "%s-controller" (include "fleetjob.name" .)) -}}
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

{{/* Two controllers that look after the same jobs would fight over their pods: fails if another release has the rights to.
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
{{- $isForJobs := or (eq .kind "ClusterRoleBinding") (hasSuffix "-controller-jobs" .metadata.name) }}
{{- if and $isForJobs (eq (dig "labels" "app.kubernetes.io/name" "" .metadata) "fleetjob") (ne $release (printf "%s/%s" $.Release.Namespace $.Release.Name)) }}
{{- fail (printf "release %s looks after the FleetJobs in %s already, and two controllers would fight over them: uninstall it, or give both a list of namespaces of their own" $release (ternary (printf "namespace %s" .metadata.namespace) "all namespaces" (hasKey .metadata "namespace"))) }}
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
    - list # controller/machinery/reflector.c: one that somebody deleted is made again
    - watch # controller/machinery/reflector.c
    - create # controller/fleetjob/job_objects.c: names for the pods
    - delete # controller/fleetjob/job_objects.c: one that a job of the same name left behind; no patch or update: they redirect any Service
- apiGroups: [scheduling.volcano.sh, scheduling.x-k8s.io]
  resources: [podgroups]
  verbs:
    - create # controller/fleetjob/job_objects.c: runPolicy.scheduling.gang
    - patch # controller/fleetjob/job_objects.c: after a change of worker.minReplicas
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs:
    - create # controller/machinery/event_recorder.c
    - patch # controller/machinery/event_recorder.c: the same again is counted
{{- end -}}

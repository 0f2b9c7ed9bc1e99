{{/* The name of all objects: the release's, and memwatch's where the release is called otherwise. */}}
{{- define "memwatch.name" -}}
{{- if contains "memwatch" .Release.Name -}}
{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-memwatch" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/* What the pods are found by. */}}
{{- define "memwatch.selector" -}}
app.kubernetes.io/name: memwatch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The labels of all objects. */}}
{{- define "memwatch.labels" -}}
{{ include "memwatch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* By digest, where there is one. */}}
{{- define "memwatch.image" -}}
{{- with .Values.image.digest -}}
{{- printf "%s@%s" $.Values.image.repository . -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

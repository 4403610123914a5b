{{- define "splitarrow.name" -}}
{{- if contains "splitarrow" .Release.Name -}}
{{- .Release.Name | trunc 55 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-splitarrow" .Release.Name | trunc 55 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "splitarrow.selector" -}}
app.kubernetes.io/name: splitarrow
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "splitarrow.labels" -}}
{{ include "splitarrow.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "splitarrow.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "splitarrow.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "splitarrow.listen" -}}
{{- $tls := ternary "+tls" "" (ne .Values.tls.secretName "") -}}
{{- $listen := list (printf "tcp%s://0.0.0.0:%d" $tls (int .Values.ports.data)) -}}
{{- if .Values.sharedMemory.enabled -}}
{{- $listen = append $listen (printf "shm://%s/data.sock" .Values.sharedMemory.hostPath) -}}
{{- end -}}
{{- toJson $listen -}}
{{- end }}

{{/* Probes present no certificate. Health checks need none, even where other requests do. */}}
{{- define "splitarrow.httpScheme" -}}
{{- ternary "https" "http" (ne .Values.tls.secretName "") -}}
{{- end }}

{{- define "splitarrow.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: {{ include "splitarrow.httpScheme" .root | upper }}
{{ toYaml .probe }}
{{- end }}

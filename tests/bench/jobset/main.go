// Command jobset is the controller of JobSets without a limit on its requests, and without its
// webhook: what its pods cost at best.
package main

import (
	"context"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/controllers"
)

func main() {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(jobset.AddToScheme(scheme))
	ctrl.SetLogger(zap.New())
	config := ctrl.GetConfigOrDie()
	config.QPS, config.Burst = 5000, 5000
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err == nil {
		err = controllers.SetupJobSetIndexes(context.Background(), manager.GetFieldIndexer())
	}
	if err == nil {
		recorder := manager.GetEventRecorderFor("jobset")
		err = controllers.NewJobSetReconciler(manager.GetClient(), scheme, recorder).SetupWithManager(manager)
	}
	if err == nil {
		err = manager.Start(ctrl.SetupSignalHandler())
	}
	if err != nil {
		ctrl.Log.Error(err, "jobset")
		os.Exit(1)
	}
}

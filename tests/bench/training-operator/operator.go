// Kubeflow's PyTorchJobs.
package main

import (
	kubeflowv1 "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
	ctrl "sigs.k8s.io/controller-runtime"
)

const name = "training-operator"

var addToScheme = kubeflowv1.AddToScheme

func setup(manager ctrl.Manager) error {
	return pytorch.NewReconciler(manager, common.GenNonGangSchedulerSetupFunc()).SetupWithManager(manager, 10)
}
